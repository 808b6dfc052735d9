"""What keys exist where in an inventory, and which known word was probably meant."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

from inventory.model import Inventory

if TYPE_CHECKING:
    from inventory.positions import Path

SECRET_FIELDS = frozenset({"password", "token_value", "token"})
"""Fields that hold a reference to a secret; what is written there is never shown."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like `word`, or None when none is near."""
    lowered = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'repo'?`, else `; known are a, b, c`, else nothing."""
    names = list(known)
    near = nearest(word, names)
    if near is not None:
        return f"; did you mean {near!r}?"
    return f"; known are {', '.join(names)}" if names else ""


def _bare(hint: Any) -> Any:
    """The type inside `Annotated` and `X | None`."""
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif get_origin(hint) in (Union, types.UnionType):
            hint = next(arg for arg in get_args(hint) if arg is not type(None))
        else:
            return hint


def type_at(path: Path) -> Any:
    """The type that belongs at `path`, or None when the path leads nowhere."""
    hint: Any = Inventory
    for part in path:
        hint = _bare(hint)
        if dataclasses.is_dataclass(hint):
            hint = get_type_hints(hint, include_extras=True).get(str(part))
        elif get_origin(hint) is dict:
            hint = get_args(hint)[1]
        elif get_origin(hint) is tuple:
            hint = get_args(hint)[0]
        else:
            return None
    return _bare(hint)


def keys_at(path: Path) -> tuple[str, ...]:
    """Known keys of the mapping at `path`; empty where keys are free names."""
    hint = type_at(path)
    if dataclasses.is_dataclass(hint):
        return tuple(item.name for item in dataclasses.fields(hint))
    return ()


def words_at(path: Path) -> tuple[str, ...]:
    """Allowed words of the enumeration at `path`."""
    hint = type_at(path)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return tuple(str(member) for member in hint)
    return ()


def is_secret(path: Path) -> bool:
    """True when the value at `path` must never be shown."""
    return any(part in SECRET_FIELDS for part in path) or (len(path) > 1 and path[-2] == "env")
