"""Several files at once, in threads that a failure or the user's Ctrl-C ends within a second."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

from provision.weights.patience import Stopped

GRACE_S = 0.8
"""How long threads may finish their current block after an interrupt."""

Task = Callable[[], None]


def workers() -> int:
    """Hashing bounds the speed, one core a file; more threads than cores only cost memory."""
    return max(2, min(8, len(os.sched_getaffinity(0))))


def run(tasks: Sequence[Task], stop: threading.Event) -> None:
    """Run all tasks; the first failure stops the rest (by `stop`) and is raised.

    The threads are daemons: one that hangs in a read must not keep the process from ending.
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    failures: list[BaseException] = []

    def work() -> None:
        while not stop.is_set():
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                task()
            except Stopped:
                return
            except BaseException as error:
                failures.append(error)
                stop.set()
                return

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers(), len(tasks)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    except BaseException:
        stop.set()
        end = time.monotonic() + GRACE_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        raise
    if failures:
        raise failures[0]
