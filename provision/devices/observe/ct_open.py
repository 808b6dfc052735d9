"""Open device nodes in a process of their own, because an open() can hang in the driver where no signal reaches it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from inventory.root import at
from provision.devices.facts import Node, NodeKind
from provision.devices.observe import look

OPEN_LIMIT_S: Final = 20.0
"""For all nodes together. Without persistence mode a driver wakes the GPU inside open(), which takes seconds each."""

FLAGS: Final = os.O_RDWR | os.O_CLOEXEC
"""Without O_NONBLOCK: with it the driver answers before it has looked at the GPU (nv.c, nvidia_open)."""


def opened(nodes: Iterable[Node], limit_s: float = OPEN_LIMIT_S) -> tuple[Node, ...]:
    """The nodes with what open() said to each character device.

    One that gave no answer in time becomes unreadable, and says so; the others keep their own answer.
    """
    listed = tuple(nodes)
    # Opening a watchdog arms it: the machine would reboot.
    tried = [n.path for n in listed if n.kind is NodeKind.CHAR and not n.path.startswith("/dev/watchdog")]
    answers = _answers(tried, limit_s)
    silent = f"no answer in {limit_s:g} s"
    return tuple(
        node
        if node.path not in tried
        else replace(node, opened=answers[node.path])
        if node.path in answers
        else replace(node, kind=NodeKind.UNREADABLE, why=silent)
        for node in listed
    )


def _answers(paths: Sequence[str], limit_s: float) -> Mapping[str, str]:
    """Path -> "" or the name of the errno, for those that were answered within the limit."""
    if not paths:
        return {}
    source, sink = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _in_child(paths, sink, limit_s)
    os.close(sink)
    try:
        lines = _read(source, time.monotonic() + limit_s).decode("ascii").split("\n")
    finally:
        os.close(source)
        _end(child)
    pairs = (line.split(" ", 1) for line in lines[:-1])
    return {paths[int(index)]: said for index, said in pairs}


def _in_child(paths: Sequence[str], sink: int, limit_s: float) -> None:
    """Open every node in a thread of its own, so that one that hangs hides no other; never returns."""
    try:
        # A child that is stuck must not hold the caller's connection open.
        for handle in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if handle != sink:
                with contextlib.suppress(OSError):
                    os.close(handle)
        # Should the parent be gone, nobody else ends this process.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit_s + 1)
        threads = [
            threading.Thread(target=_try, args=(index, path, sink), daemon=True)
            for index, path in enumerate(paths)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os._exit(0)


def _try(index: int, path: str, sink: int) -> None:
    said = ""
    try:
        os.close(os.open(at(path), FLAGS))
    except OSError as error:
        said = look.errno_name(error)
    os.write(sink, f"{index} {said}\n".encode())  # below PIPE_BUF: in one piece


def _read(source: int, end: float) -> bytes:
    """What arrives until the other side closes or the time is over."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    parts = []
    while poll.poll(max(0.0, end - time.monotonic()) * 1000):
        part = os.read(source, 65536)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def _end(child: int) -> None:
    """End the child and take its exit status; one that is stuck in the kernel is left behind after half a second."""
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    end = time.monotonic() + 0.5
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < end:
            time.sleep(0.001)
