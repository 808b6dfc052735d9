"""Prompts of the user's own: one text, a file of lines, JSON lines, or a ShareGPT-like JSON list."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from inventory.errors import UsageError

DEFAULT: Final = (
    "Explain how a hash table works: hashing, buckets, collisions, resizing and the cost of each operation. "
    "Give an example with numbers for every step."
)
"""Asked when the user brings no prompt; open-ended, so that a long budget is used."""

KEYS: Final = ("prompt", "text", "question", "instruction", "input")
"""Where an object may hold its prompt; the first that is a text counts."""

_FORMS: Final = (
    'one prompt a line, JSON lines with "prompt", or a JSON list of {"conversations": [{"from", "value"}]}'
)


def read(path: Path) -> tuple[str, ...]:
    """All prompts of a file, in their order. Raises `UsageError` naming the file and the place that has none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"prompts cannot be read from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})", hint=_FORMS) from error
    found = tuple(_of(text, path))
    if not found:
        raise UsageError(f"there is no prompt in {path}", hint=_FORMS)
    return found


def _of(text: str, path: Path) -> Iterator[str]:
    if text.lstrip().startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} begins like a JSON list and is none: {error}", hint=_FORMS) from error
        for number, item in enumerate(items, 1):
            yield _prompt(item, f"{path}, element {number}")
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if not line.lstrip().startswith("{"):
            yield line.strip()
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}:{number} begins like JSON and is none: {error}", hint=_FORMS) from error
        yield _prompt(item, f"{path}:{number}")


def _prompt(item: Any, place: str) -> str:
    if isinstance(item, Mapping):
        turns = item.get("conversations") or item.get("messages")
        if isinstance(turns, list):
            said = [_turn(turn) for turn in turns if isinstance(turn, Mapping)]
            item = next((text for who, text in said if who in ("human", "user") and text), None)
        else:
            item = next((item[key] for key in KEYS if isinstance(item.get(key), str)), None)
    if not isinstance(item, str) or not item.strip():
        raise UsageError(f"{place} holds no prompt", hint=_FORMS)
    return item


def _turn(turn: Mapping[str, Any]) -> tuple[str, Any]:
    """Who says what, in ShareGPT's words or in OpenAI's."""
    return str(turn.get("from") or turn.get("role")), turn.get("value") or turn.get("content")
