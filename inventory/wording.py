"""Turn what pydantic found into sentences that say what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inventory.names import is_secret, keys_at, suggestion, words_at

if TYPE_CHECKING:
    from inventory.positions import Path

_LIMITS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def shown(value: Any, path: Path) -> str:
    """What was written, short, and masked where it could be a secret."""
    if is_secret(path) and not isinstance(value, list | dict | None):
        return "what is written there (not shown)"
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {value if len(value) <= 60 else value[:57] + '...'!r}"
        case list():
            return "a list"
    return "a mapping"


def sentence(error: Mapping[str, Any], path: Path, value: Any) -> str:
    """One of pydantic's error entries in plain words; `value` is what stands at `path`."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _LIMITS:
        words, key = _LIMITS[kind]
        limit = context[key]
        return (
            f"must be {words} {limit:g}, not {value}"
            if isinstance(limit, float)
            else (f"must be {words} {limit}, not {value}")
        )
    match kind:
        case "missing" | "missing_argument":
            return "is missing"
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"unknown key {str(path[-1])!r}{suggestion(str(path[-1]), keys_at(path[:-1]))}"
        case "enum" if isinstance(value, str):
            return f"unknown word {value!r}{suggestion(value, words_at(path))}"
        case "string_too_short" | "too_short":
            return "must not be empty"
    if value is None:
        return "is empty: give it a value, or leave the line out"
    return f"must be {_wanted(kind)}, not {shown(value, path)}{_advice(kind, value)}"


def _wanted(kind: str) -> str:
    match kind:
        case "string_type":
            return "text"
        case "int_type" | "int_from_float" | "int_parsing":
            return "a whole number"
        case "float_type" | "float_parsing":
            return "a number"
        case "bool_type" | "bool_parsing":
            return "true or false"
        case "tuple_type" | "list_type":
            return "a list"
        case "enum":
            return "one of the known words"
        case "dict_type" | "dataclass_type" | "dataclass_exact_type" | "model_type":
            return "a mapping (lines of `key: value` below it)"
    return f"something else ({kind.replace('_', ' ')})"


def _advice(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, int | float):
        return "; put it in quotes"
    if kind in ("tuple_type", "list_type") and isinstance(value, str | int | float):
        return "; write it in square brackets, or as lines that begin with '- '"
    if kind.startswith(("int", "float")) and isinstance(value, str) and value.strip().isdigit():
        return "; leave the quotes out"
    return ""
