"""`gpuctl bench`: how fast is it, measured so that the number survives doubt?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from gpuctl import options
from gpuctl.answer import print_json
from gpuctl.cli import EXIT_CODES
from gpuctl.commands.load_options import alone, load_options
from inventory.errors import Exit
from inventory.model import Method, Task


@click.command(
    help="""Measure the engine of a container with one decoding method, or any server that runs.

    The engine is started with the method (restarted when it runs with another), proven to use it, warmed up and
    measured; tokens are counted by the server, reasoning included and shown apart. The result is stored with the
    configuration read back from the engine.

    With --url nothing is started and no inventory is needed: requests go to the OpenAI-compatible server there.

    \b
    Examples:
      gpuctl bench ct200
      gpuctl bench ct200 --method auto --task fib --max-tokens 256 --max-tokens 1024
      gpuctl bench ct200 --repeat 5 --json
      gpuctl bench --url http://127.0.0.1:8000 --model my/model
      gpuctl bench --url http://127.0.0.1:8000 --concurrency 1 --concurrency 8 --requests 64
      gpuctl bench --url https://llm.example.org --key env:LLM_KEY --prompts prompts.jsonl --out results
    """,
    epilog=EXIT_CODES,
)
@options.container_argument(required=False)
@options.inventory_option
@click.option(
    "--method", type=click.Choice([str(m) for m in Method]), help="How the engine decodes. Default: auto."
)
@click.option("--tp", type=click.IntRange(min=1), help="Tensor-parallel size.")
@click.option("--task", "tasks", multiple=True, type=click.Choice([str(t) for t in Task]), help="Repeatable.")
@click.option("--max-tokens", multiple=True, type=click.IntRange(1, 1_000_000), help="Output length; repeatable.")
@click.option("--repeat", type=click.IntRange(1, 1000), help="Measured runs per task and length.")
@click.option("--think", type=click.Choice(["on", "off"]), help="Switch reasoning on or off.")
@load_options
@options.json_option
@options.quiet_option
def bench(
    ct: str | None,
    inventory: tuple[Path, ...],
    method: str | None,
    tp: int | None,
    tasks: tuple[str, ...],
    max_tokens: tuple[int, ...],
    repeat: int | None,
    think: str | None,
    as_json: bool,
    quiet: bool,
    **load: Any,
) -> int:
    """See the command's help."""
    if load["url"] is not None:
        from gpuctl.commands.bench_url import measure

        engine = {"CT": ct, "--inventory": inventory, "--method": method, "--tp": tp, "--task": tasks}
        alone(engine | {"--repeat": repeat}, "--url measures a server that already runs")
        return measure(max_tokens=max_tokens, think=think, as_json=as_json, quiet=quiet, **load)
    alone({f"--{name.replace('_', '-')}": value for name, value in load.items()}, "only --url can do that")
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
        launch = launch_of(link, Method(method or Method.AUTO), tp)
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
