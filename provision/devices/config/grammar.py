"""What one line of a container configuration is to Proxmox's parser (pve-container 6.1.10, parse_pct_config)."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

from provision.devices.config import keys

_A: Final = re.ASCII
PENDING: Final = re.compile(r"\[pve:pending\]\s*$", _A | re.IGNORECASE)
SNAPSHOT: Final = re.compile(r"\[([a-z][a-z0-9_-]+)\]\s*$", _A | re.IGNORECASE)
_RAW: Final = re.compile(r"(lxc\.[a-z0-9_.-]+)(?::|\s*=)\s*", _A)
_SNAPSTATE: Final = re.compile(r"(snapstate):\s*(prepare|delete)\s*$", _A)
_VALUE: Final = re.compile(r"([a-z][a-z_]*\d*):\s*", _A)
SPACE: Final = " \t\n\r\f\v"
REMEMBERED: Final = 400
"""Longest line, in characters, whose reading is remembered: other files have the same ones."""


class Kind(StrEnum):
    """What a line is to the parser."""

    BLANK = "blank"
    COMMENT = "comment"
    HEADER = "header"
    RAW = "raw"
    VALUE = "value"
    MALFORMED = "malformed"


Found = tuple[Kind, str, str, tuple[int, int]]


def _read(body: str, may_delete: bool) -> Found:
    """Kind, key, value and place of the value. The order of the tests is the parser's."""
    if not body.strip(SPACE):
        return Kind.BLANK, "", "", (0, 0)
    if body.startswith("[") and (PENDING.match(body) or SNAPSHOT.match(body)):
        return Kind.HEADER, "", "", (0, 0)
    if body.startswith("#"):
        return Kind.COMMENT, "", "", (0, 0)
    kind, key, (start, end) = _setting(body, may_delete)
    return kind, key, body[start:end], (start, end)


_remembered = lru_cache(maxsize=1 << 14)(_read)


def read(body: str, may_delete: bool) -> Found:
    """Kind, key, value of a line, and where the value stands in it; `may_delete`: whether `delete:` is legal there."""
    return _remembered(body, may_delete) if len(body) < REMEMBERED else _read(body, may_delete)


def _setting(body: str, may_delete: bool) -> tuple[Kind, str, tuple[int, int]]:
    end = len(body.rstrip(SPACE))
    if match := _RAW.match(body):
        kind = Kind.RAW if keys.accepted(match[1]) else Kind.MALFORMED
        return kind, match[1], (min(match.end(), end), end)
    match = _VALUE.match(body)
    key, start = (match[1], match.end()) if match else ("", 0)
    if key == "description" and start < end:
        return Kind.VALUE, key, (start, end)
    if state := _SNAPSTATE.search(body):  # not anchored at the start in the real parser
        return Kind.VALUE, state[1], state.span(2)
    if key == "delete" and start < end:
        return (Kind.VALUE if may_delete else Kind.MALFORMED), key, (start, end)
    if key and start >= end:  # a value of blanks only is its last blank
        return (Kind.VALUE, key, (start - 1, start)) if body[start - 1] != ":" else (Kind.MALFORMED, "", (0, 0))
    return (Kind.VALUE, key, (start, end)) if key else (Kind.MALFORMED, "", (0, 0))
