"""`gpuctl engine`: start, stop and look at the inference server."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import click

from gpuctl import options
from gpuctl.answer import print_json
from inventory.errors import Exit
from inventory.model import Method

METHODS = [str(method) for method in Method]


@click.group(
    help="""The inference server of a container.

    \b
    Examples:
      gpuctl engine status ct200
      gpuctl engine start ct200 --method auto
      gpuctl engine flags ct200 --method dflash --tp 2
      gpuctl engine logs ct200 --lines 50
    """
)
def engine() -> None:
    """See the group's help."""


def _method_option(command: click.decorators.FC) -> click.decorators.FC:
    command = click.option("--tp", type=click.IntRange(min=1), help="Tensor-parallel size.")(command)
    return click.option("--method", type=click.Choice(METHODS), default="auto", show_default=True)(command)


@engine.command(help="Start it with a method, or restart it when it runs with another.")
@options.container_argument(required=False)
@options.inventory_option
@_method_option
@options.quiet_option
def start(ct: str | None, inventory: tuple[Path, ...], method: str, tp: int | None, quiet: bool) -> int:
    """Stage `engine` of a recovery, for any method."""
    from gpuctl.link import Link
    from gpuctl.recovery import launch_of
    from gpuctl.story import Story
    from provision.engine.stage import EngineStage
    from provision.pipeline import run

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link, link.exclusive("engine start"):
        story = Story(quiet=quiet, lab=link.lab)
        outcome = run((EngineStage(link.ct, launch_of(link, Method(method), tp)),), story.report, story.emit)[0]
    for line in outcome.found:
        click.echo(link.mark + line)
    return int(Exit.GOOD)


@engine.command(help="Stop it and make sure that it is gone.")
@options.container_argument(required=False)
@options.inventory_option
def stop(ct: str | None, inventory: tuple[Path, ...]) -> int:
    """Ends the engine that gpuctl started."""
    from gpuctl.link import Link
    from gpuctl.recovery import launch_of

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link, link.exclusive("engine stop"):
        answer = link.ct.call("engine.stop", {"launch": launch_of(link).to_json(env=False)}, timeout_s=120)
    stopped = bool(answer.get("stopped"))
    said = "engine stopped" if stopped else "no engine of gpuctl was running"
    click.echo(f"{link.mark}{link.name}: {said}")
    return int(Exit.GOOD)


@engine.command(help="What runs, with which method, since when. Exit code 2 when none serves.")
@options.container_argument(required=False)
@options.inventory_option
@options.json_option
def status(ct: str | None, inventory: tuple[Path, ...], as_json: bool) -> int:
    """Reads the engine's own endpoint and our record of its start."""
    from gpuctl.link import Link
    from gpuctl.recovery import launch_of
    from provision.engine.stage import EngineStage

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link:
        made = EngineStage(link.ct, launch_of(link))
        facts = made.observe()
    if as_json:
        print_json({"container": link.name, "lab": link.lab, "engine": dataclasses.asdict(facts)})
    else:
        for line in made.describe(facts):
            click.echo(link.mark + line)
    return int(Exit.GOOD if facts.state == "ready" else Exit.FAILED)


@engine.command(help="The exact command line of a method.")
@options.container_argument(required=False)
@options.inventory_option
@_method_option
def flags(ct: str | None, inventory: tuple[Path, ...], method: str, tp: int | None) -> int:
    """Nothing is contacted: the command line follows from the inventory."""
    from bench.engines.registry import launch
    from inventory.errors import ConfigError

    loaded = options.loaded(inventory)
    name = options.pick(loaded, ct)
    entry = loaded.inventory.containers[name].engine
    if entry is None:
        raise ConfigError(f"{name} has no engine in the inventory", hint=f"add containers.{name}.engine")
    made = launch(entry, Method(method), entry.tp if tp is None else tp)
    click.echo(shlex.join(made.argv))
    return int(Exit.GOOD)


@engine.command(help="The last lines of its log.")
@options.container_argument(required=False)
@options.inventory_option
@click.option("-n", "--lines", type=click.IntRange(1, 10_000), default=40, show_default=True)
def logs(ct: str | None, inventory: tuple[Path, ...], lines: int) -> int:
    """From the log of the engine that gpuctl started last."""
    from gpuctl.link import Link
    from gpuctl.recovery import launch_of

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link:
        answer = link.ct.call("engine.logs", {"launch": launch_of(link).to_json(env=False), "lines": lines})
    for line in answer["lines"]:
        click.echo(line)
    return int(Exit.GOOD)
