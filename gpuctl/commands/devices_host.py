"""`gpuctl devices undo` and `boot-unit`: backups of the configuration, and the lasting fix on the host."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpuctl import options
from gpuctl.answer import print_json
from gpuctl.cli import EXIT_CODES
from inventory.errors import CannotLook, Exit, Refused, UsageError

if TYPE_CHECKING:
    from gpuctl.link import Link
    from inventory.loader import Loaded
    from provision.devices.facts import Backup
    from provision.devices.wanted import Want

_yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def _agreed(what: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(f"this would {what}", hint="give --yes to let it, or --dry-run to see what it would do")
    if not click.confirm(f"{what}?", default=True, err=True):
        raise Refused("not agreed to; nothing was changed", hint="run again to decide anew")


def _when(made_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(made_s))


@click.command(
    help="""Put a container's configuration back as it was before gpuctl's last edit.

    Refused when the file has changed since that edit: then somebody else's change would be lost. The state that is
    replaced is kept as a backup too, so an undo can be undone.

    \b
    Examples:
      gpuctl devices undo ct200 --list      the backups there are
      gpuctl devices undo ct200 --dry-run
      gpuctl devices undo ct200 --yes
    """,
    epilog=EXIT_CODES,
)
@options.container_argument(required=False)
@options.inventory_option
@click.option("--backup", metavar="PATH", help="This backup instead of the newest (see --list).")
@click.option("--list", "only_list", is_flag=True, help="Only list the backups.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@_yes_option
@options.json_option
def undo(
    ct: str | None,
    inventory: tuple[Path, ...],
    backup: str | None,
    only_list: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """See the command's help."""
    from gpuctl.link import Link

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link:
        host = link.scout.host()
        if only_list:
            return _list(link, host.backups, as_json=as_json)
        chosen = _choose(link.name, host.backups, backup)
        what = f"put {host.conf_path} back as it was at {_when(chosen.made_s)} ({chosen.path})"
        if dry_run:
            answer = {"dry_run": True, "would_restore": chosen.to_json()}
            return _answer(link, f"would {what}", answer, as_json=as_json)
        _agreed(what, yes=yes)
        with link.exclusive("devices undo"):
            args = {"vmid": link.container.vmid, "backup": chosen.path}
            done = link.host.call("host.undo_conf", args, timeout_s=60.0)
    text = (
        f"{host.conf_path} is as it was at {_when(chosen.made_s)} (what it replaced: {done['backup']}); "
        "a running container keeps its old rules until it is restarted"
    )
    return _answer(link, text, {"dry_run": False, **done}, as_json=as_json)


def _choose(name: str, backups: tuple[Backup, ...], path: str | None) -> Backup:
    if not backups:
        raise Refused(
            f"there is no backup of {name}'s configuration on the host",
            hint="gpuctl makes one before each of its own edits; it has made none here",
        )
    if path is None:
        return backups[0]
    for backup in backups:
        if path in (backup.path, Path(backup.path).name):
            return backup
    raise UsageError(f"{path} is no backup of {name}", hint="see gpuctl devices undo --list")


def _list(link: Link, backups: tuple[Backup, ...], *, as_json: bool) -> int:
    if as_json:
        print_json({"container": link.name, "lab": link.lab, "backups": [b.to_json() for b in backups]})
    for backup in () if as_json else backups:
        click.echo(f"{_when(backup.made_s)}  {backup.path}")
    if not backups and not as_json:
        click.echo(f"{link.mark}{link.name}: no backups")
    return int(Exit.GOOD)


def _answer(link: Link, text: str, answer: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        print_json({"container": link.name, "lab": link.lab, **answer})
    else:
        click.echo(f"{link.mark}{link.name}: {text}")
    return int(Exit.GOOD)


@click.command(
    name="boot-unit",
    help="""A systemd unit on the host that loads nvidia-uvm and makes the nodes before Proxmox starts its guests.

    This is the lasting fix for containers that are started before the nodes exist. NAME is a container, or a host of
    the inventory: then the unit serves all containers of it.

    \b
    Examples:
      gpuctl devices boot-unit ct200              show the unit and whether it is installed
      gpuctl devices boot-unit pve1 --install
      gpuctl devices boot-unit pve1 --remove
    """,
    epilog=EXIT_CODES,
)
@click.argument("name", metavar="CT|HOST", required=False)
@options.inventory_option
@click.option("--show", "action", flag_value="show", default="show", help="Show it (the default).")
@click.option("--install", "action", flag_value="install", help="Write and enable it.")
@click.option("--remove", "action", flag_value="remove", help="Disable and remove it.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@_yes_option
@options.json_option
def boot_unit(
    name: str | None, inventory: tuple[Path, ...], action: str, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """See the command's help."""
    from gpuctl.link import Link
    from provision.devices.planning import boot_unit as unit

    loaded = options.loaded(inventory)
    names = _containers(loaded, name)
    with Link(loaded, names[0]) as link:
        wants = dict.fromkeys(want for each in names for want in _wants(loaded, each, link))
        text, left_out = unit.unit_text(unit.argvs(link.scout.host(), tuple(wants))), unit.left_out(wants)
        done = link.host.call("host.boot_unit", {"action": "show"}, timeout_s=60.0)
        what = f"{action} {done['path']} on host {link.host_name}"
        if action != "show" and not dry_run:
            _agreed(what, yes=yes)
            with link.exclusive("devices boot-unit"):
                words = {"action": action, **({"text": text} if action == "install" else {})}
                done = link.host.call("host.boot_unit", words, timeout_s=120.0)
    if as_json:
        told = {"host": link.host_name, "lab": link.lab, "action": action, "dry_run": dry_run, **done}
        print_json({**told, "wanted_text": text, "left_out": list(left_out)})
        return int(Exit.GOOD)
    for line in left_out:
        click.echo(f"{link.mark}warning: {line}", err=True)
    if action == "show" or dry_run:
        click.echo(text if not done["installed"] else done["text"], nl=False)
        state = "is installed" + (" and enabled" if done["enabled"] else ", but not enabled")
        click.echo(f"{link.mark}{done['path']} {state if done['installed'] else 'is not installed'}", err=True)
        if dry_run and action != "show":
            click.echo(f"{link.mark}would {what}; nothing was changed", err=True)
        return int(Exit.GOOD)
    past = {"install": "installed and enabled", "remove": "removed"}[action]
    already = "" if done["changed"] else " already"
    click.echo(f"{link.mark}host {link.host_name}: {done['path']} is{already} {past}")
    return int(Exit.GOOD)


def _containers(loaded: Loaded, name: str | None) -> tuple[str, ...]:
    """The containers a name stands for; a host's name for all of it."""
    if name in loaded.inventory.hosts:
        found = tuple(ct for ct, entry in loaded.inventory.containers.items() if entry.host == name)
        if not found:
            raise UsageError(f"host {name!r} has no container in the inventory", hint="add one under containers:")
        return found
    return (options.pick(loaded, name),)


def _wants(loaded: Loaded, name: str, link: Link) -> tuple[Want, ...]:
    """The nodes that one container needs."""
    from provision.devices import wanted
    from provision.devices.config import conf
    from provision.devices.facts import HostFacts

    container = loaded.inventory.containers[name]
    host = (
        link.scout.host()
        if name == link.name
        else HostFacts.from_json(link.host.call("host.facts", {"vmid": container.vmid}))
    )
    if host.conf.state != "present":
        raise CannotLook(f"{name} has no configuration on host {link.host_name}", hint="see gpuctl devices show")
    return wanted.wanted(container, host, conf.parse(host.conf.text).main).nodes


COMMANDS: Final[dict[str, click.Command]] = {"undo": undo, "boot-unit": boot_unit}
