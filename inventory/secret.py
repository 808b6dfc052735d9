"""Secrets by reference: read at the moment of use, masked wherever they could be shown."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from inventory.errors import CannotLook, ConfigError

COMMAND_LIMIT_S = 10.0
"""A password manager that asks nothing answers within this time."""

MAX_BYTES = 64 * 1024
"""No password or token is longer; a reference to /dev/zero ends here."""

FORMS = "`env:NAME`, `file:PATH` or `command:ARGV`"


class Secret:
    """A secret value; only `reveal()` shows it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the one call that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __reduce__(self) -> str:
        raise TypeError("a secret is never pickled")


def fault(reference: str) -> str:
    """Why `reference` can't be one, in a sentence that does not show it; empty when it can."""
    kind, colon, rest = reference.partition(":")
    if not colon or kind not in ("env", "file", "command"):
        return f"holds a secret in clear; refer to it by {FORMS}"
    if not rest.strip():
        return f"names nothing after `{kind}:`"
    if kind == "command":
        try:
            shlex.split(rest)
        except ValueError as error:
            return f"has a command that can't be split into words: {error}"
    if kind == "env" and ("=" in rest or "\0" in rest or rest != rest.strip()):
        return "has no usable name of an environment variable after `env:`"
    return ""


def is_reference(text: str) -> bool:
    """True for a text that `resolve` would read; `file://` and the like are addresses, not references."""
    return not fault(text) and "://" not in text.partition(" ")[0]


def resolve(reference: str, *, base: Path, environ: Mapping[str, str] | None = None) -> Secret:
    """Read the secret. `base`: folder for a relative `file:` path and the folder in which a command runs.

    Raises `ConfigError` for what the reference or its file gets wrong (not set, missing, open to others),
    `CannotLook` when a command fails. No message holds the secret.
    """
    wrong = fault(reference)
    if wrong:
        raise ConfigError(f"a secret's reference {wrong}", hint=f"write {FORMS}")
    kind, _, rest = reference.partition(":")
    match kind:
        case "env":
            value = _from_environment(rest, os.environ if environ is None else environ)
        case "file":
            value = _from_file(base / Path(rest).expanduser())
        case _:
            value = _from_command(tuple(shlex.split(rest)), base)
    if not value:
        raise ConfigError(f"the secret {_name(kind, rest)} is empty", hint="an empty secret is never right")
    if any(letter in value for letter in "\r\n\0"):
        raise ConfigError(
            f"the secret {_name(kind, rest)} has more than one line", hint="keep only the secret in it"
        )
    return Secret(value)


def _name(kind: str, rest: str) -> str:
    """What to call a reference in a message; of a command only its program, for arguments can be secret."""
    return f"{kind}:{shlex.split(rest)[0] if kind == 'command' else rest}"


def _from_environment(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name)
    if value is None:
        raise ConfigError(
            f"the environment variable {name} is not set",
            hint=f"export {name} before running gpuctl, or use file:PATH",
        )
    return value.strip()


def _from_file(path: Path) -> str:
    try:
        # O_NONBLOCK: a FIFO must not hang us; it is refused below.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"the secret file {path} can't be read: {error.strerror}") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise ConfigError(f"the secret file {path} is not a regular file")
        if info.st_mode & 0o077:
            raise ConfigError(
                f"the secret file {path} can be read by others (mode {stat.S_IMODE(info.st_mode):04o})",
                hint=f"chmod 600 {shlex.quote(str(path))}",
            )
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    finally:
        os.close(fd)
    return _decoded(data, f"file:{path}")


def _from_command(argv: tuple[str, ...], base: Path) -> str:
    try:
        # Its stderr could repeat the secret, so it is dropped; its stdin is closed, so it can't wait for a person.
        done = subprocess.run(
            argv,
            cwd=base,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotLook(
            f"the secret command {argv[0]} did not end within {COMMAND_LIMIT_S:g} s",
            hint="it must not ask questions; unlock the password manager first",
        ) from None
    except OSError as error:
        raise ConfigError(f"the secret command {argv[0]} can't be started: {error.strerror}") from None
    if done.returncode != 0:
        raise CannotLook(
            f"the secret command {argv[0]} ended with exit status {done.returncode}",
            hint="run it by hand to see why; its output is not shown here because it may hold the secret",
        )
    return _decoded(done.stdout, f"command:{argv[0]}")


def _decoded(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        raise ConfigError(f"the secret {name} is longer than {MAX_BYTES} bytes")
    try:
        return data.decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"the secret {name} is not UTF-8 text") from None
