"""`gpuctl lab`: start, reboot, look at and stop the embedded host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuctl import options
from gpuctl.answer import print_json
from gpuctl.cli import EXIT_CODES
from inventory.errors import Exit

if TYPE_CHECKING:
    from gpuctl.lab.state import LabDir, LabInfo

_dir_option = click.option(
    "--dir",
    "folder",
    default=".lab",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The lab's folder; several labs can run side by side.",
)


@click.group(
    help="""An embedded Proxmox-like host to try everything on: no GPU, no root, no Proxmox.

    It is one process on loopback: an https API, an SSH server whose commands are real processes, a Hugging Face Hub,
    and a container with eight simulated GPUs. Everything it gives is marked as lab.

    \b
    Examples:
      gpuctl lab up                   start it; writes .lab/gpuctl.yaml
      gpuctl lab reboot               what a host reboot does to GPUs, weights and containers
      gpuctl recover ct200 --inventory .lab/gpuctl.yaml
      gpuctl lab down --purge         stop it and remove its folder
    """
)
def lab() -> None:
    """The group."""


@lab.command(
    help="""Start the lab and print where it is; when it runs already, only the latter.

    The first start is a machine on which everything was set up right. A start after `down` is a boot: as after
    `reboot`, the GPUs are not usable in the container until `gpuctl recover ct200`.

    Level 0 needs no rights and simulates device nodes and rules. Level 1 needs root, Debian's lxc and cc: device nodes
    are real, the container is started by lxc-start, and it is the kernel that refuses a device.

    \b
    Examples:
      gpuctl lab up
      gpuctl lab up --level 1 --dir /tmp/lab1
      gpuctl lab up --dir /tmp/lab2 --json
    """,
    epilog=EXIT_CODES,
)
@_dir_option
@click.option(
    "--level",
    type=click.IntRange(0, 1),
    help="0: simulated nodes, no rights needed; 1: real nodes and LXC, as root.  [default: as before, 0 at first]",
)
@options.json_option
@options.quiet_option
def up(folder: Path, level: int | None, as_json: bool, quiet: bool) -> int:
    """See the command's help."""
    from gpuctl.lab import manage

    place = _open(folder)
    started = manage.up(place, level=level)
    if as_json:
        print_json({"started": started.started, **_facts(place, started.info)})
    elif not quiet:
        click.echo(f"lab: {'started' if started.started else 'runs already'} in {place.root}")
        _say(place, started.info)
    return int(Exit.GOOD)


@lab.command(
    help="""Reboot the lab's host: what a real reboot does, in about a second.

    Connections drop; boot id and uptime change; nvidia-uvm is not loaded and will get another major; its nodes are
    gone; /dev/shm is empty; the container was started too early; old result files lie about.

    \b
    Examples:
      gpuctl lab reboot && gpuctl recover ct200
    """,
    epilog=EXIT_CODES,
)
@_dir_option
@options.json_option
@options.quiet_option
def reboot(folder: Path, as_json: bool, quiet: bool) -> int:
    """See the command's help."""
    from gpuctl.lab import manage

    place = _open(folder)
    info = manage.reboot(place)
    if as_json:
        print_json(_facts(place, info))
    elif not quiet:
        click.echo(f"lab: rebooted, boot {info.boot_count}, boot id {info.boot_id}")
    return int(Exit.GOOD)


@lab.command(
    help="""Show what runs. Exit code 0 when the lab runs, 2 when it does not.

    \b
    Examples:
      gpuctl lab status
      gpuctl lab status --json
    """,
    epilog=EXIT_CODES,
)
@_dir_option
@options.json_option
@options.quiet_option
def status(folder: Path, as_json: bool, quiet: bool) -> int:
    """See the command's help."""
    from gpuctl.lab import manage
    from inventory.errors import Refused

    place = _open(folder)
    try:
        info = manage.running(place)
    except Refused as error:
        if as_json:
            print_json({"lab": True, "running": False, "dir": str(place.root)})
        elif not quiet:
            click.echo(f"lab: {error.message}")
        return int(Exit.FAILED)
    if as_json:
        print_json(_facts(place, info))
    elif not quiet:
        click.echo(f"lab: runs in {place.root}, boot {info.boot_count}")
        _say(place, info)
    return int(Exit.GOOD)


@lab.command(
    help="""Stop the lab and every process in it.

    \b
    Examples:
      gpuctl lab down
      gpuctl lab down --purge     also removes the folder: keys, configuration, results, cached weights
    """,
    epilog=EXIT_CODES,
)
@_dir_option
@click.option("--purge", is_flag=True, help="Remove the folder too.")
@options.json_option
@options.quiet_option
def down(folder: Path, purge: bool, as_json: bool, quiet: bool) -> int:
    """See the command's help."""
    from gpuctl.lab import manage

    place = _open(folder)
    ran = manage.down(place, purge=purge)
    if as_json:
        print_json({"lab": True, "stopped": ran, "purged": purge, "dir": str(place.root)})
    elif not quiet:
        click.echo(f"lab: {'stopped' if ran else 'was not running'}{', folder removed' if purge else ''}")
    return int(Exit.GOOD)


def _open(folder: Path) -> LabDir:
    from gpuctl.lab.state import open_dir

    return open_dir(folder)


def _facts(place: LabDir, info: LabInfo) -> dict[str, Any]:
    """What lab.json says, without the token that marks the lab's processes."""
    data = {name: value for name, value in info.to_json().items() if name not in {"token", "schema_version"}}
    return {**data, "running": True, "inventory": str(place.inventory)}


def _say(place: LabDir, info: LabInfo) -> None:
    ports = info.ports
    lines = (
        ("Proxmox API", f"https://127.0.0.1:{ports['api']} (root@pam, password in {place.password})"),
        ("SSH", f"root@127.0.0.1 port {ports['ssh']} (key {place.ssh / 'client_key'})"),
        ("Hub", f"http://127.0.0.1:{ports['hub']}"),
        ("isolation", f"{info.isolation} (level {info.level})"),
        ("inventory", str(place.inventory)),
        ("next", f"gpuctl recover ct200 --inventory {place.inventory}"),
    )
    for name, text in (*lines, *(("note", note) for note in info.notes)):
        click.echo(f"  {name:<12} {text}")
