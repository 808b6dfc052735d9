"""Run one of the host's own tools that changes something, within a limit: its exit status and its words."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from inventory.errors import Failed

_END_S: Final = 3.0
_MOST: Final = 64 * 1024
"""Bytes of its output that are read."""


class TooLate(Failed):
    """It was ended at its limit: what it had done until then is not known."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A tool that has ended."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str

    @property
    def words(self) -> tuple[str, ...]:
        """The last lines it said: of stderr, or of stdout when there are none."""
        return tuple((self.stderr.strip() or self.stdout.strip()).splitlines()[-12:])

    def to_json(self) -> dict[str, Any]:
        return {"argv": list(self.argv), "rc": self.rc, "stderr": (self.stderr or self.stdout).strip()[-4000:]}


def run(argv: tuple[str, ...], limit_s: float, *, missing: str = "", late: str = "") -> Ran:
    """Run it to its end. Output goes to files in memory, so that a child that outlives it can't hold us up.

    Raises `Failed` when it isn't installed (hint `missing`) or can't be run, `TooLate` when it does not end in time
    (hint `late`): then it and its children are ended.
    """
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": ""}
    with _memory("stdout") as out, _memory("stderr") as err:
        try:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
            )
        except FileNotFoundError as error:
            raise Failed(f"{argv[0]} is not installed on the host", hint=missing) from error
        except OSError as error:
            raise Failed(f"{' '.join(argv)} can't be run: {os.strerror(error.errno or 0)}") from error
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            _end(child)
            raise TooLate(
                f"{' '.join(argv)} did not end within {limit_s:g} s",
                hint=late,
                detail=tuple(_text(err).splitlines()),
            ) from None
        except BaseException:
            _end(child)
            raise
        return Ran(argv, child.returncode, _text(out), _text(err))


def _memory(name: str) -> BinaryIO:
    return open(os.memfd_create(name, os.MFD_CLOEXEC), "w+b")  # noqa: PTH123


def _text(file: BinaryIO) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _MOST))
    return file.read().decode("utf-8", "replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_S)
            return
