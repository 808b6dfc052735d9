"""`gpuctl devices`: show, plan and repair a container's access to its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gpuctl import options
from gpuctl.answer import preview_json, print_json, say_preview
from gpuctl.cli import EXIT_CODES
from inventory.errors import Exit, UsageError
from provision.pipeline import Preview, StageName

if TYPE_CHECKING:
    from provision.devices.consent import Consent
    from provision.devices.diagnosis.diagnose import Cause

F = TypeVar("F", bound=Callable[..., Any])

SPAN: Final = (StageName.CONNECT, StageName.HOST, StageName.DEVICES, StageName.CONTAINER)


def consent_options(command: F) -> F:
    """What may be done to a container that runs; shared with `gpuctl recover`."""
    for option in reversed(_CONSENT):
        command = option(command)
    return command


_CONSENT: Final = (
    click.option(
        "--prefer",
        type=click.Choice(["keep", "dev"]),
        default="keep",
        show_default=True,
        help="dev: turn raw NVIDIA lines into dev[n] entries, which follow a moving number (Proxmox VE >= 8.1).",
    ),
    click.option(
        "--live", is_flag=True, help="Change the device rules of the running container where that is enough."
    ),
    click.option("--no-restart", is_flag=True, help="Never restart a running container; say why one is needed."),
    click.option(
        "--grace",
        type=click.FloatRange(min=1),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a container may take to shut down before it is stopped.",
    ),
)


def consent_of(*, prefer: str, live: bool, no_restart: bool, grace: float) -> Consent:
    """The value behind the four options."""
    from provision.devices.consent import Consent, Style

    return Consent(restart=not no_restart, live=live, grace_s=grace, prefer=Style(prefer))


class _Group(click.Group):
    """Commands about host and backups live in a module of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_MORE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _MORE:
            from gpuctl.commands import devices_host

            return devices_host.COMMANDS[cmd_name]
        return super().get_command(ctx, cmd_name)


_MORE: Final = ("undo", "boot-unit")


@click.group(
    cls=_Group,
    help="""A container's access to its GPUs: device nodes, their numbers, the rules in its configuration.

    \b
    Examples:
      gpuctl devices show ct200            what is there, what is wrong and why
      gpuctl devices plan ct200            what would be changed
      gpuctl devices apply ct200           change it
      gpuctl devices undo ct200            put the configuration back as it was before
      gpuctl devices boot-unit ct200       a unit that makes the nodes before the containers start
      gpuctl devices facts ct200 > f.json  everything read, without secrets, for a report
      gpuctl devices plan --facts f.json   plan from such a file, on any machine
    """,
)
def devices() -> None:
    """See the group's help."""


@devices.command(help="Show what is there, what is wrong and why; change nothing.", epilog=EXIT_CODES)
@options.container_argument(required=False)
@options.inventory_option
@click.option("--facts", type=click.Path(path_type=Path), metavar="FILE", help="Read such a file ('-': stdin).")
@options.json_option
def show(ct: str | None, inventory: tuple[Path, ...], facts: Path | None, as_json: bool) -> int:
    """Like `plan`, with every cause and its evidence; exit code 2 when something would have to be changed."""
    consent = consent_of(prefer="keep", live=False, no_restart=False, grace=60.0)
    return _look(ct, inventory, facts, consent, as_json=as_json, show=True)


@devices.command(
    help="""Show what would be changed; change nothing.

    \b
    Examples:
      gpuctl devices plan ct200
      gpuctl devices plan ct200 --prefer dev
      gpuctl devices plan --facts facts.json     no host and no inventory needed
    """,
    epilog=EXIT_CODES,
)
@options.container_argument(required=False)
@options.inventory_option
@click.option("--facts", type=click.Path(path_type=Path), metavar="FILE", help="Read such a file ('-': stdin).")
@consent_options
@options.json_option
def plan(ct: str | None, inventory: tuple[Path, ...], facts: Path | None, as_json: bool, **words: Any) -> int:
    """The stages host, devices and container of a recovery, without making a step."""
    return _look(ct, inventory, facts, consent_of(**words), as_json=as_json, show=False)


def _look(
    ct: str | None, inventory: tuple[Path, ...], facts: Path | None, consent: Consent, *, as_json: bool, show: bool
) -> int:
    if facts is not None:
        from gpuctl.facts_file import read
        from gpuctl.story import Story
        from provision.devices import stages
        from provision.pipeline import preview

        if ct is not None:
            raise UsageError("CT and --facts exclude each other", hint="the file says which container it is about")
        record = read(facts)
        built = stages.stages(record.scout, record.container, record.container.vmid, 120.0, consent)
        story = Story(lab=record.lab)
        previews = preview(built.values(), story.report)
        causes = _causes(record.scout, record.container, previews)
        return _say(record.name, record.lab, previews, causes, as_json=as_json, show=show)
    from gpuctl.link import Link

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link:
        link.host_shell.dial()
        # Imported while the login waits for its answers.
        from gpuctl import recovery
        from gpuctl.story import Story
        from provision.pipeline import preview

        story = Story(lab=link.lab)
        previews = preview(recovery.stages(link, SPAN, wait_s=0, consent=consent), story.report)
        causes = _causes(link.scout, link.container, previews)
        return _say(link.name, link.lab, previews, causes, as_json=as_json, show=show)


def _causes(scout: Any, container: Any, previews: tuple[Preview, ...]) -> tuple[Cause, ...]:
    """Every cause, the root first; what the container looks like inside only when that could be seen."""
    from inventory.errors import CannotLook
    from provision.devices.diagnosis.diagnose import diagnose
    from provision.devices.doors import ct_name

    if not any(p.stage is StageName.HOST for p in previews):
        return ()  # not even connected: there is nothing to tell causes from
    host, guest = scout.host(), scout.guest()
    try:
        inside = scout.inside()
    except CannotLook:
        inside = None
    return diagnose(ct_name(container.vmid), host, container, inside, guest=guest)


def _say(
    name: str, lab: bool, previews: tuple[Preview, ...], causes: Iterable[Cause], *, as_json: bool, show: bool
) -> int:
    told = tuple(causes)
    blocked = next((p.blocked for p in previews if p.blocked), None)
    if as_json:
        listed = [
            {
                "id": str(c.id),
                "text": c.text,
                "evidence": list(c.evidence),
                "follows": c.follows,
                "note": c.note,
                "hint": c.hint,
            }
            for c in told
        ]
        print_json(
            {"container": name, "lab": lab, "causes": listed, "stages": [preview_json(p) for p in previews]}
        )
    else:
        if show:
            _say_causes(told)
        say_preview(("lab: " if lab else "") + name, previews, "devices are as they should be")
    if blocked:
        return int(blocked.exit_code)
    if show and any(p.steps for p in previews):
        return int(Exit.FAILED)
    return int(Exit.WARNING if any(p.warnings for p in previews) else Exit.GOOD)


def _say_causes(causes: tuple[Cause, ...]) -> None:
    for number, cause in enumerate(causes):
        label = "note" if cause.note else "also" if number else "cause"
        click.echo(f"{label}: {cause.text}")
        for line in cause.evidence:
            click.echo(f"  seen: {line}")
        if cause.follows:
            click.echo(f"  so: {cause.follows}")
        if cause.hint:
            click.echo(f"  do: {cause.hint}")


@devices.command(help="Make the changes that 'plan' shows.", epilog=EXIT_CODES)
@options.container_argument(required=False)
@options.inventory_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@consent_options
@options.json_option
@options.quiet_option
@click.pass_context
def apply(ctx: click.Context, /, **words: Any) -> int:
    """The same as `gpuctl recover CT --from host --until container`."""
    from gpuctl.commands.recover import recover

    code = ctx.invoke(recover, **words, first="host", last="container", dry_run=False, wait=None)
    return int(code or 0)


@devices.command(
    help="""Print everything that was read, as JSON, without secrets: for a report, or for 'plan --facts'.

    Comments, descriptions and environment values of the configuration are left out.
    """,
    epilog=EXIT_CODES,
)
@options.container_argument(required=False)
@options.inventory_option
@click.option("--json", "as_json", is_flag=True, help="The only form there is; accepted for symmetry.")
def facts(ct: str | None, inventory: tuple[Path, ...], as_json: bool) -> int:  # noqa: ARG001
    """Facts of API, host and container; a part that can't be read says why instead."""
    from gpuctl.facts_file import record
    from gpuctl.link import Link

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link:
        link.scout.begin()
        answer = record(link.name, link.scout, link.container, lab=link.lab)
    print_json(answer)
    return int(Exit.GOOD)
