"""The answer on stdout: JSON with a schema version, or a line; and how many of what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from provision.pipeline import Preview


def print_json(data: Mapping[str, Any]) -> None:
    """The machine-readable answer of a command."""
    click.echo(json.dumps({"schema_version": 1, **data}, indent=2))


def count(number: int, word: str) -> str:
    """`1 change`, `2 changes`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def preview_json(preview: Preview) -> dict[str, Any]:
    """A stage of a dry run with stable keys."""
    return {
        "stage": str(preview.stage),
        "found": list(preview.found),
        "plan": list(preview.steps),
        "known_later": list(preview.later),
        "warnings": list(preview.warnings),
        "blocked": preview.blocked.to_json() if preview.blocked else None,
    }


def say_preview(name: str, previews: tuple[Preview, ...], good: str) -> None:
    """One line that sums up a dry run; a blocked stage's hint goes to stderr."""
    blocked = next((p.blocked for p in previews if p.blocked), None)
    steps = sum(len(p.steps) for p in previews)
    if blocked is not None:
        click.echo(f"{name}: {blocked.message}")
        if blocked.hint:
            click.echo(f"hint: {blocked.hint}", err=True)
    elif steps:
        click.echo(f"{name}: {count(steps, 'change')} would be made; nothing was changed")
    else:
        click.echo(f"{name}: {good}")
