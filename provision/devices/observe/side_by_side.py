"""Readers that run side by side, each on its own: one that fails or hangs leaves only its own facts unknown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

READ_LIMIT_S: Final = 8.0
"""For all readers of a job together; a pmxcfs, a network file system or a driver that hangs answers nothing more."""

Found = dict[str, Any]
Reader = Callable[[Found], None]
"""Puts each fact into the dict as soon as it has it, so that those before a hang are kept."""


def read(readers: Mapping[str, Reader], limit_s: float) -> tuple[Found, tuple[str, ...]]:
    """What the readers found within `limit_s` seconds, and a sentence for each that failed or did not answer."""
    found: Found = {}
    problems: list[str] = []

    def work(name: str, reader: Reader) -> None:
        try:
            reader(found)
        except Exception as error:  # no fact may hide another, whatever one of its files holds
            problems.append(f"{name} can't be read: {type(error).__name__} {error}")

    # A daemon thread that is stuck in the kernel does not keep this process from ending.
    threads = {
        name: threading.Thread(target=work, args=(name, reader), daemon=True) for name, reader in readers.items()
    }
    end = time.monotonic() + limit_s
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            problems.append(f"{name} gave no answer in {limit_s:g} s")
    return dict(found), tuple(problems)
