"""Bodies on the wire: the kernel copies a whole file; a faulty one goes through our hands."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from gpuctl.lab.hub.answer import Answer
from gpuctl.lab.hub.faults import Fault, FaultKind

_BLOCK = 256 * 1024


def send(given: Answer, connection: socket.socket, write: Callable[[bytes], object]) -> bool:
    """Send the body; False when the connection must be closed after it."""
    if given.blob is None:
        write(given.body)
        return True
    if given.fault is not None:
        return _faulty(given, given.fault, connection, write)
    if isinstance(given.blob.content, Path):
        with given.blob.content.open("rb") as file:
            connection.sendfile(file, given.start, given.count)
    else:
        write(given.blob.content[given.start : given.start + given.count])
    return True


def _faulty(given: Answer, fault: Fault, connection: socket.socket, write: Callable[[bytes], object]) -> bool:
    assert given.blob is not None
    data = bytearray(given.blob.read()[given.start : given.start + given.count])
    at = fault.at - given.start
    match fault.kind:
        case FaultKind.FLIP:
            if 0 <= at < len(data):
                data[at] ^= 1
            write(bytes(data))
        case FaultKind.SHORT:
            write(bytes(data[: len(data) - fault.at]))
        case FaultKind.LONG:
            write(bytes(data) + b"x" * fault.at)
        case FaultKind.CHUNKED:
            for offset in range(0, len(data), _BLOCK):
                part = bytes(data[offset : offset + _BLOCK])
                write(b"%x\r\n%s\r\n" % (len(part), part))
            write(b"0\r\n\r\n")
        case FaultKind.SLOW:
            step = max(1, fault.rate // 20)
            for offset in range(0, len(data), step):
                write(bytes(data[offset : offset + step]))
                time.sleep(0.05)
        case FaultKind.STALL:
            write(bytes(data[: max(0, at)]))
            time.sleep(fault.seconds)
            write(bytes(data[max(0, at) :]))
        case FaultKind.CLOSE | FaultKind.RESET:
            write(bytes(data[: max(0, at)]))
            if fault.kind is FaultKind.RESET:
                # Linger 0 makes close() send RST instead of FIN.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
            return False
        case _:
            raise AssertionError(fault.kind)
    return True
