"""known_hosts files: which host keys are written down for a name, and in which file and line."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that applies to the host asked for."""

    file: Path
    line: int
    marker: str
    """`@revoked`, `@cert-authority` or empty."""
    kind: str
    """Key type, for example `ssh-ed25519`."""
    blob: bytes

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def host_name(address: str, port: int) -> str:
    """How known_hosts spells an address: bare for port 22, else `[address]:port`."""
    return address if port == 22 else f"[{address}]:{port}"


def fingerprint(blob: bytes) -> str:
    """As `ssh-keygen -l` shows it: `SHA256:` and base64 without padding."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def entries_for(name: str, files: tuple[Path, ...]) -> tuple[Entry, ...]:
    """Lines for `name` (as `host_name` spells it); files that do not exist count as empty."""
    found = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        for number, line in enumerate(text.split("\n"), start=1):
            entry = _entry(line, name, file, number)
            if entry is not None:
                found.append(entry)
    return tuple(found)


def _entry(line: str, name: str, file: Path, number: int) -> Entry | None:
    fields = line.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if len(fields) < 3 or not _matches(fields[0], name):
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    return Entry(file, number, marker, fields[1], blob)


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        return _hashed(patterns, name)
    hit = False
    for pattern in patterns.lower().split(","):
        negated = pattern.startswith("!")
        # In known_hosts only * and ? are special; [ is literal, as in [address]:port.
        wild = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name.lower(), wild):
            if negated:
                return False
            hit = True
    return hit


def _hashed(pattern: str, name: str) -> bool:
    try:
        _, _, salt, digest = pattern.split("|")
        key, wanted = base64.b64decode(salt), base64.b64decode(digest)
    except ValueError:
        return False
    # HMAC-SHA1 is the format of OpenSSH's HashKnownHosts; nothing rests on its strength.
    return hmac.compare_digest(hmac.new(key, name.lower().encode(), hashlib.sha1).digest(), wanted)
