"""Options and arguments that several commands share, and how words become an inventory entry."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from inventory.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from inventory.loader import Loaded

F = TypeVar("F", bound=Callable[..., Any])


def _complete_container(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    try:
        names = loaded(ctx.params.get("inventory", ())).inventory.containers
    except Exception:  # completion must stay silent whatever the inventory looks like
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def inventory_option(command: F) -> F:
    """`--inventory FILE`, repeatable."""
    return click.option(
        "--inventory",
        "inventory",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Inventory file; may be repeated. Default: GPUCTL_INVENTORY, ./gpuctl.yaml, ./inventory/*.yaml, "
        "the lab in ./.lab.",
    )(command)


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")(command)


def quiet_option(command: F) -> F:
    """`--quiet`."""
    return click.option("-q", "--quiet", is_flag=True, help="Print nothing when all is well.")(command)


def container_argument(*, required: bool) -> Callable[[F], F]:
    """The CT argument with completion from the inventory."""

    def add(command: F) -> F:
        return click.argument(
            "ct", required=required, metavar="CT" if required else "[CT]", shell_complete=_complete_container
        )(command)

    return add


def find_files(named: tuple[Path, ...]) -> tuple[Path, ...]:
    """The inventory files in force; empty when there is none."""
    from inventory.loader import find

    return find(Path.cwd(), named, os.environ)


def loaded(named: tuple[Path, ...]) -> Loaded:
    """The inventory in force; `ConfigError` when there is none."""
    from gpuctl.known_inventory import load

    files = find_files(named)
    if not files:
        raise ConfigError(
            "no inventory found: no --inventory, no GPUCTL_INVENTORY, no gpuctl.yaml or inventory/*.yaml here",
            hint="write one with 'gpuctl inventory init --api https://HOST:8006', or try 'gpuctl lab up'",
        )
    return load(files)


def pick(inventory: Loaded, word: str | None) -> str:
    """The container a command is about: the one named, or the only one there is."""
    names = tuple(inventory.inventory.containers)
    if word is None:
        if len(names) == 1:
            return names[0]
        raise UsageError(
            f"which container? the inventory has {len(names)}: {', '.join(names) or 'none'}",
            hint="name one, for example: gpuctl preflight " + (names[0] if names else "ct200"),
        )
    if word in names:
        return word
    for name, container in inventory.inventory.containers.items():
        if word in (str(container.vmid), f"ct{container.vmid}"):
            return name
    import difflib

    near = difflib.get_close_matches(word, names, 1)
    raise UsageError(
        f"no container is called {word!r} in {', '.join(str(f) for f in inventory.files)}",
        hint=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}",
    )
