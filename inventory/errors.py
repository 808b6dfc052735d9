"""The one error family: a sentence with the offending value, a hint, and an exit code."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Self


class Exit(IntEnum):
    """Process exit codes of every command; 0-3 are what Nagios, Icinga and cron wrappers expect."""

    GOOD = 0
    WARNING = 1
    FAILED = 2
    UNKNOWN = 3
    USAGE = 64
    CONFIG = 78
    INTERRUPTED = 130


class GpuctlError(Exception):
    """Base of every error meant for the user.

    `message` is one clear sentence holding the offending value; `hint` says what to do next;
    `detail` holds lines of evidence (an engine's last log lines, a task's own text).
    Never put a secret into any of them.
    """

    exit_code: Exit = Exit.FAILED
    kind: str = "failed"

    def __init__(self, message: str, *, hint: str = "", detail: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = tuple(detail)

    def to_json(self) -> dict[str, Any]:
        """The error as it travels over the wire and into `--json` output."""
        return {
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "detail": list(self.detail),
            "exit_code": int(self.exit_code),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> GpuctlError:
        """Rebuild an error that crossed the wire; an unknown kind becomes `Failed`."""
        cls = KINDS.get(str(data.get("kind")), Failed)
        return cls(
            str(data.get("message", "the other side reported an error without a message")),
            hint=str(data.get("hint", "")),
            detail=tuple(str(line) for line in data.get("detail", ())),
        )

    def within(self, context: str) -> Self:
        """The same error, its message prefixed by where it happened."""
        self.message = f"{context}: {self.message}"
        self.args = (self.message,)
        return self


class UsageError(GpuctlError):
    """The words typed do not make a command."""

    exit_code = Exit.USAGE
    kind = "usage"


class ConfigError(GpuctlError):
    """The inventory or a configuration file is wrong."""

    exit_code = Exit.CONFIG
    kind = "config"


class Failed(GpuctlError):
    """Something was tried and did not work, or is proven wrong."""

    exit_code = Exit.FAILED
    kind = "failed"


class Refused(GpuctlError):
    """Doing it would be unsafe or impossible (locked, no room, changed meanwhile), so nothing was done."""

    exit_code = Exit.FAILED
    kind = "refused"


class CannotLook(GpuctlError):
    """The state could not be read (unreachable, refused, unreadable): unknown, which is louder than good."""

    exit_code = Exit.UNKNOWN
    kind = "unknown"


class ConnectionLost(CannotLook):
    """A connection dropped while a command ran: whether the command finished is not known."""

    kind = "connection-lost"


KINDS: dict[str, type[GpuctlError]] = {
    cls.kind: cls for cls in (UsageError, ConfigError, Failed, Refused, CannotLook, ConnectionLost)
}
