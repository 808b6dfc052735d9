"""Options of `gpuctl bench --url`: what is sent to a server that already runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from inventory.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.option("--url", metavar="URL", help="An OpenAI-compatible server that already runs."),
    click.option("--model", metavar="M", help="Its model. Default: the only one it lists."),
    click.option("--requests", type=click.IntRange(1, 1_000_000), help="Requests in all. Default: 10, or 2 a slot."),
    click.option(
        "--concurrency", multiple=True, type=click.IntRange(1, 1024), help="Requests at a time. Repeatable."
    ),
    click.option("--prompt", metavar="TEXT", help="What to ask."),
    click.option("--prompts", type=click.Path(path_type=Path), metavar="FILE", help="Prompts, asked in turn: "
                 "lines, JSON lines or a ShareGPT list."),
    click.option("--key", metavar="REF", help="Where its key is: env:NAME, file:PATH or command:ARGV."),
    click.option("--warmup", type=click.IntRange(0, 100), help="Most warm-up requests. Default: 5."),
    click.option("--warm-cache", is_flag=True, help="Let the prefix cache help: no mark in front of the prompts."),
    click.option("--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="Limit of one request."),
    click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Keep the result and every request "
                 "in a folder there."),
)  # fmt: skip


def load_options(command: F) -> F:
    """Add them all."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def alone(others: Mapping[str, Any], why: str) -> None:
    """Raise `UsageError` when one of the others was given."""
    given = [name for name, value in others.items() if value not in (None, (), False)]
    if given:
        raise UsageError(f"{', '.join(given)} does not go with that: {why}", hint="see 'gpuctl bench --help'")
