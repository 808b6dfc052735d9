"""`gpuctl recover`: from a rebooted host to a proven state, stage by stage."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpuctl import options
from gpuctl.answer import count, preview_json, print_json, say_preview
from gpuctl.commands.devices import consent_of, consent_options
from inventory.errors import Exit, GpuctlError, Refused, UsageError
from provision.pipeline import Outcome, Report, Stage, StageName, Step

if TYPE_CHECKING:
    from gpuctl.journal import Journal

STAGES: Final = [str(name) for name in StageName]

ASKED: Final = frozenset({StageName.HOST, StageName.DEVICES, StageName.CONTAINER})
"""Stages whose changes others can feel; on a terminal they are asked for, elsewhere they need --yes."""


@click.command(
    help="""Bring container CT back to a proven state after a reboot: devices, weights, CUDA, engine, baseline.

    Each stage looks, plans, changes and looks again. What is right already is left alone, so a second run
    changes nothing; a run that was killed is continued by running it again.

    \b
    Examples:
      gpuctl recover ct200                    ask before anything others can feel
      gpuctl recover ct200 --dry-run          the whole plan, changing nothing
      gpuctl recover ct200 --yes --wait 300   from a boot script
      gpuctl recover ct200 --until preflight  without engine and measurement
    """
)
@options.container_argument(required=False)
@options.inventory_option
@click.option("--dry-run", is_flag=True, help="Show the whole plan as far as it can be known; change nothing.")
@click.option("--from", "first", type=click.Choice(STAGES), help="Begin with this stage.")
@click.option("--until", "last", type=click.Choice(STAGES), help="End after this stage.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before changing the host or restarting the container.")
@click.option("--wait", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait so long for a booting host.")
@consent_options
@options.json_option
@options.quiet_option
def recover(
    ct: str | None,
    inventory: tuple[Path, ...],
    dry_run: bool,
    first: str | None,
    last: str | None,
    yes: bool,
    wait: float | None,
    as_json: bool,
    quiet: bool,
    **words: Any,
) -> int:
    """See the command's help."""
    from gpuctl import recovery
    from gpuctl.link import Link

    names = recovery.span(StageName(first) if first else None, StageName(last) if last else None)
    if first and last and STAGES.index(first) > STAGES.index(last):
        raise UsageError(f"--from {first} lies after --until {last}", hint=f"the order is {', '.join(STAGES)}")
    consent, loaded = consent_of(**words), options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link:
        wait_s = link.thresholds.connect_wait_s if wait is None else wait
        stages = recovery.stages(link, names, wait_s=wait_s, consent=consent)
        if dry_run:
            return _preview(link, stages, as_json=as_json, quiet=quiet)
        return _run(link, names, stages, yes=yes, as_json=as_json, quiet=quiet)


def _preview(link: Any, stages: Iterable[Stage], *, as_json: bool, quiet: bool) -> int:
    from gpuctl.story import Story
    from provision.pipeline import preview

    story = Story(quiet=quiet, lab=link.lab)
    previews = preview(stages, story.report)
    if as_json:
        listed = [preview_json(p) for p in previews]
        print_json({"container": link.name, "lab": link.lab, "dry_run": True, "stages": listed})
    else:
        say_preview(link.mark + link.name, previews, "nothing to change")
    blocked = next((p.blocked for p in previews if p.blocked), None)
    return int(blocked.exit_code if blocked else Exit.GOOD)


def _run(
    link: Any, names: tuple[StageName, ...], stages: Iterable[Stage], *, yes: bool, as_json: bool, quiet: bool
) -> int:
    from gpuctl import journal as diary
    from gpuctl.story import Story
    from provision.pipeline import run

    story = Story(quiet=quiet, lab=link.lab)
    began = time.monotonic()
    with link.exclusive("recover"):
        before = diary.earlier(link.name)
        if before and not before.finished:
            story.say(
                f"the run before this one did not finish (it was in stage {before.stage or 'connect'}); continuing"
            )
        journal = diary.open_journal(link.name, lab=link.lab, stages=[str(n) for n in names], argv=sys.argv[1:])

        def report(entry: Report) -> None:
            told = {"line": entry.line, **({"more": list(entry.more)} if entry.more else {})}
            journal.write("stage", stage=str(entry.stage), phase=str(entry.phase), **told)
            story.report(entry)

        def agree(stage: StageName, steps: tuple[Step, ...]) -> None:
            if not yes and stage in ASKED:
                _ask(link.name, stage, steps)

        try:
            outcomes = run(stages, report, story.emit, agree)
        except GpuctlError as error:
            journal.end("failed", error=error.to_json())
            story.line(" " * 10, f"{'journal':<9}", str(journal.path))
            raise
        except BaseException as error:
            journal.end("interrupted", error=type(error).__name__)
            raise
        journal.end("done", changed=[line for o in outcomes for line in o.changed])
        _answer(link, outcomes, journal, time.monotonic() - began, as_json=as_json, quiet=quiet)
    return int(Exit.WARNING if any(outcome.warnings for outcome in outcomes) else Exit.GOOD)


def _ask(name: str, stage: StageName, steps: tuple[Step, ...]) -> None:
    more = f" (and {len(steps) - 1} more)" if len(steps) > 1 else ""
    if not sys.stdin.isatty():
        raise Refused(
            f"stage {stage} would change {name}: {steps[0].line}{more}",
            hint="give --yes to let it, or --dry-run to see the whole plan",
        )
    if not click.confirm(f"make {count(len(steps), 'change')}?", default=True, err=True):
        raise Refused(
            f"stage {stage} was not agreed to; nothing of it was changed", hint="run again to decide anew"
        )


def _answer(
    link: Any, outcomes: tuple[Outcome, ...], journal: Journal, seconds: float, *, as_json: bool, quiet: bool
) -> None:
    changed = [line for outcome in outcomes for line in outcome.changed]
    last = outcomes[-1]
    if as_json:
        print_json(
            {
                "container": link.name,
                "lab": link.lab,
                "dry_run": False,
                "outcome": "recovered" if changed else "already",
                "seconds": round(seconds, 3),
                "stages": [
                    {
                        "stage": str(o.stage),
                        "found": list(o.found),
                        "changed": list(o.changed),
                        "warnings": list(o.warnings),
                    }
                    for o in outcomes
                ],
                "journal": str(journal.path),
            }
        )
        return
    warnings = [line for outcome in outcomes for line in outcome.warnings]
    if quiet and not changed and not warnings:
        return
    reached = "in a proven state" if last.stage is StageName.BENCH else f"right up to stage {last.stage}"
    what = count(len(changed), "change") if changed else "nothing had to be changed"
    click.echo(f"{link.mark}{link.name} is {reached}: {what}, {seconds:.1f} s")
    if last.stage is StageName.BENCH:
        for line in last.found:
            click.echo(line)
    for line in warnings:
        click.echo(f"{link.mark}warning: {line}")
