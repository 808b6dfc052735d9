"""`gpuctl bench`: how fast is it, measured so that the number survives doubt?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from gpuctl import options
from gpuctl.answer import print_json
from inventory.errors import Exit
from inventory.model import Method, Task


@click.command(
    help="""Measure the engine of a container with one decoding method.

    The engine is started with the method (restarted when it runs with another), proven to use it, warmed up and
    measured; tokens are counted by the server, reasoning included and shown apart. The result is stored with the
    configuration read back from the engine.

    \b
    Examples:
      gpuctl bench ct200
      gpuctl bench ct200 --method auto --task fib --max-tokens 256 --max-tokens 1024
      gpuctl bench ct200 --repeat 5 --json
    """
)
@options.container_argument(required=False)
@options.inventory_option
@click.option("--method", type=click.Choice([str(m) for m in Method]), default="auto", show_default=True)
@click.option("--tp", type=click.IntRange(min=1), help="Tensor-parallel size.")
@click.option("--task", "tasks", multiple=True, type=click.Choice([str(t) for t in Task]), help="Repeatable.")
@click.option("--max-tokens", multiple=True, type=click.IntRange(1, 1_000_000), help="Output length; repeatable.")
@click.option("--repeat", type=click.IntRange(1, 1000), help="Measured runs per task and length.")
@click.option("--think", type=click.Choice(["on", "off"]), help="Switch reasoning on or off.")
@options.json_option
@options.quiet_option
def bench(
    ct: str | None,
    inventory: tuple[Path, ...],
    method: str,
    tp: int | None,
    tasks: tuple[str, ...],
    max_tokens: tuple[int, ...],
    repeat: int | None,
    think: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """See the command's help."""
    from bench.summary import line, table
    from gpuctl.link import Link
    from gpuctl.recovery import launch_of
    from gpuctl.stages.bench import BenchStage
    from gpuctl.story import Story
    from provision.engine.stage import EngineStage
    from provision.pipeline import run

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link, link.exclusive("bench"):
        plan = link.container.bench
        plan = dataclasses.replace(
            plan,
            tasks=tuple(Task(task) for task in tasks) or plan.tasks,
            max_tokens=max_tokens or plan.max_tokens,
            repeats=repeat or plan.repeats,
            think=plan.think if think is None else think == "on",
        )
        link.container = dataclasses.replace(link.container, bench=plan)
        launch = launch_of(link, Method(method), tp)
        story = Story(quiet=quiet, lab=link.lab)
        stage = BenchStage(link, launch, again=True)
        outcomes = run((EngineStage(link.ct, launch), stage), story.report, story.emit)
        result = stage.observe().baseline
        assert result is not None
    if as_json:
        print_json({"container": link.name, "lab": link.lab, "result": result.to_json()})
    else:
        for row in (*table(result), "", line(result)):
            click.echo(row)
    return int(Exit.WARNING if outcomes[-1].warnings else Exit.GOOD)
