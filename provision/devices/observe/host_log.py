"""Lines about the GPU's driver in the kernel's own log of this boot.

/dev/kmsg is read rather than dmesg run: no process, no options that differ between versions, and a record at a time
that never waits for the next one. Only the kernel's ring buffer is in it, so a host that logs much has lost the oldest.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Final

from inventory.root import at
from provision.devices.facts import Content, State
from provision.devices.observe import look

LAST: Final = 60
"""Lines kept."""
_LARGEST: Final = 16 << 20
_LONGEST: Final = 1000
_ABOUT: Final = (
    "nvrm", "nvidia", "nouveau", "vfio-pci",
    "key was rejected", "module verification", "unsigned module", "not signed with a trusted key",
)  # fmt: skip
"""What a line is searched for, in small letters."""
_RECORD: Final = re.compile(r"[0-9]+,[0-9]+,([0-9]+),[^;]*;(.*)\Z", re.ASCII)


def kernel_log() -> Content:
    """The last lines about the driver, `[seconds] text`; empty when there is none, unreadable without the right."""
    raw = _records()
    return Content(raw.state, about_the_driver(raw.text), raw.why)


def _records() -> Content:
    """Everything that is in the log now."""
    path = "/dev/kmsg"
    try:
        handle = os.open(at(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        return Content(State.ABSENT)
    except OSError as error:
        return Content(State.UNREADABLE, why=look.errno_name(error))
    try:
        if not stat.S_ISCHR(os.fstat(handle).st_mode) and not stat.S_ISREG(os.fstat(handle).st_mode):
            return Content(State.UNREADABLE, why="not a log")
        return Content(State.PRESENT, _drained(handle).decode("latin-1"))
    except OSError as error:
        return Content(State.UNREADABLE, why=look.errno_name(error))
    finally:
        os.close(handle)


def _drained(handle: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size < _LARGEST:
        try:
            part = os.read(handle, 16384)
        except OSError as error:
            if error.errno == errno.EPIPE:
                continue  # records were overwritten while we read: the next read goes on with the oldest one left
            if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
                break
            raise
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def about_the_driver(text: str) -> str:
    """From records of /dev/kmsg (`level,number,microseconds,flags;text`, extra lines begin with a blank) or dmesg."""
    kept = []
    for line in _lines_with(_ABOUT, text):
        match = _RECORD.match(line)
        said = match[2] if match else line
        if line.startswith(" ") or "ommand line: " in said:  # the kernel's parameters are a fact of their own
            continue
        kept.append((f"[{int(match[1]) / 1e6:12.6f}] {said}" if match else said)[:_LONGEST])
    return "".join(f"{line}\n" for line in kept[-LAST:])


def _lines_with(words: Sequence[str], text: str) -> Iterator[str]:
    """Lines that hold one of the words; searching the whole text is 50 times faster than matching every line."""
    small = text.lower()
    starts: dict[int, int] = {}
    for word in words:
        found = small.find(word)
        while found >= 0:
            end = text.find("\n", found)
            end = end if end >= 0 else len(text)
            starts[text.rfind("\n", 0, found) + 1] = end
            found = small.find(word, end)
    for start in sorted(starts):
        yield text[start : starts[start]]
