"""One file from the Hub: resumed where an earlier run stopped, every byte hashed, no answer believed unchecked."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from inventory.errors import Failed
from provision.weights.digest import Digest
from provision.weights.hub import Hub
from provision.weights.model import RemoteFile
from provision.weights.patience import Passing, Patience, Stopped, tries
from provision.weights.place import Sink, read_json, write_json
from provision.weights.progress import Meter

if TYPE_CHECKING:
    import httpx2

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)$")


def state_path(part: Path) -> Path:
    """Beside a part file: what is known of the answer its bytes came from."""
    return part.with_suffix(".json")


class Fetch:
    """The transfer of one file into `sink` (resumable) and, in the same pass, into `mirror`."""

    def __init__(
        self,
        hub: Hub,
        commit: str,
        file: RemoteFile,
        sinks: tuple[Sink, ...],
        *,
        patience: Patience,
        stop: threading.Event,
        meter: Meter,
    ) -> None:
        self._hub = hub
        self._commit = commit
        self._file = file
        self._sink, self._mirrors = sinks[0], sinks[1:]
        self._patience = patience
        self._stop = stop
        self._meter = meter
        self._digest = Digest(file)
        self._best = 0
        self._senseless_answers = 0

    def run(self) -> Digest:
        """Returns when all bytes are there and right.

        Raises `Failed` when the bytes are wrong twice or the server keeps failing, `CannotLook` when it
        cannot be reached, `Stopped` when `stop` was set. The part file stays for the next run.
        """
        if self._sink.length:
            self._sink.replay(self._take_again)
        for last in (False, True):
            self._fill()
            if self._digest.right():
                return self._digest
            # Nobody can tell which byte is wrong, so none of them is kept.
            self._restart()
            if not last:
                self._meter.note(
                    f"{self._file.path}: the bytes that came are not what the Hub lists; fetching again"
                )
        kind = "sha256" if self._file.sha256 else "git blob id"
        raise Failed(
            f"{self._file.path}: the bytes from {self._hub.endpoint} do not have the {kind} it lists, twice",
            hint="something between here and the Hub changes them, or its listing is wrong; try another endpoint",
        )

    def _fill(self) -> None:
        try:
            for attempt in tries(self._patience, self._stop, self._say, progress=lambda: self._best):
                with attempt:
                    self._once()
        except Passing as error:
            raise error.final from error

    def _say(self, line: str) -> None:
        self._meter.note(f"{self._file.path}: {line}")

    def _once(self) -> None:
        import httpx2

        start = self._sink.length
        if start == self._file.size and start > 0:
            return
        headers = self._range(start)
        try:
            with self._hub.stream(self._hub.url(self._commit, self._file.path), headers) as response:
                self._check(response, start)
                self._remember(response)
                self._body(response)
        except httpx2.TimeoutException as error:
            raise self._passing(f"no byte came for {self._patience.stall_s:.0f} s", error) from error
        except httpx2.HTTPError as error:
            passing = self._hub.unreachable(error)
            raise (passing if isinstance(error, httpx2.ConnectError) else self._passing(passing.reason)) from error
        if self._sink.length != self._file.size:
            raise self._passing(f"the answer ended after {self._sink.length} of {self._file.size} bytes")

    def _range(self, start: int) -> Mapping[str, str]:
        if not start:
            return {}
        headers = {"Range": f"bytes={start}-"}
        state = read_json(state_path(self._sink.path))
        etag = state.get("etag", "") if isinstance(state, dict) else ""
        if etag.startswith('"'):
            # Weak validators never match in If-Range (RFC 9110, 13.1.5).
            headers["If-Range"] = etag
        return headers

    def _check(self, response: httpx2.Response, start: int) -> None:
        """Make the sink's length and the answer's first byte agree, or raise.

        What has arrived is thrown away only for a whole file that is about to come, or at the second
        senseless answer in a row: one hiccup must not cost gigabytes.
        """
        status, size = response.status_code, self._file.size
        if status == 416:
            raise self._senseless("the server refuses to go on where the last run stopped (416)")
        if status not in (200, 206):
            with suppress(Exception):
                response.read()
            raise self._hub.refusal(response)
        if status == 206:
            said = response.headers.get("Content-Range", "")
            given = _CONTENT_RANGE.match(said)
            if not start or not given or int(given[1]) != start or given[3] not in ("*", str(size)):
                raise self._senseless(f"asked for bytes from {start} of {size}, the server answered {said!r}")
        else:
            self._check_whole(response)
            if start:
                self._restart()
        self._senseless_answers = 0

    def _check_whole(self, response: httpx2.Response) -> None:
        """A 200 must announce this file, not a login page."""
        length, kind = response.headers.get("Content-Length", ""), response.headers.get("Content-Type", "")
        page = kind.startswith("text/html") and not self._file.path.endswith((".html", ".htm"))
        sized = length.isdigit() and not response.headers.get("Content-Encoding")
        if page or (sized and int(length) != self._file.size):
            raise self._passing(f"the server sends {length} bytes of {kind} instead of {self._file.size}")

    def _senseless(self, reason: str) -> Passing:
        self._senseless_answers += 1
        if self._senseless_answers > 1:
            self._restart()
        return self._passing(reason)

    def _remember(self, response: httpx2.Response) -> None:
        state = {"etag": response.headers.get("ETag", ""), "size": self._file.size, "commit": self._commit}
        write_json(state_path(self._sink.path), state)

    def _body(self, response: httpx2.Response) -> None:
        size, began, mark = self._file.size, time.monotonic(), self._sink.length
        for chunk in response.iter_bytes():
            if self._stop.is_set():
                raise Stopped
            if self._sink.length + len(chunk) > size:
                self._restart()
                raise self._passing(f"the server sends more than the {size} bytes it lists")
            self._take(chunk)
            now = time.monotonic()
            if now - began >= self._patience.stall_s:
                if (self._sink.length - mark) / (now - began) < self._patience.floor_bps:
                    raise self._passing(f"fewer than {self._patience.floor_bps:.0f} bytes a second")
                began, mark = now, self._sink.length

    def _take(self, chunk: bytes) -> None:
        self._sink.write(chunk)
        for mirror in self._mirrors:
            mirror.write(chunk)
        self._digest.update(chunk)
        self._best = max(self._best, self._sink.length)
        self._meter.set(self._file.path, self._sink.length, moved=len(chunk))

    def _take_again(self, block: memoryview) -> None:
        if self._stop.is_set():
            raise Stopped
        for mirror in self._mirrors:
            mirror.write(block)
        self._digest.update(block)
        self._best = self._digest.count
        self._meter.set(self._file.path, self._digest.count, moved=len(block))

    def _restart(self) -> None:
        for sink in (self._sink, *self._mirrors):
            sink.restart()
        self._digest.restart()
        state_path(self._sink.path).unlink(missing_ok=True)
        self._meter.set(self._file.path, 0)

    def _passing(self, reason: str, error: Exception | None = None) -> Passing:
        final = Failed(
            f"{self._file.path} cannot be fetched from {self._hub.endpoint}: {reason}",
            hint="run again: what has arrived is kept in the cache folder, when there is one",
            detail=(str(error),) if error and str(error) else (),
        )
        return Passing(reason, final)
