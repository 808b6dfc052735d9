"""A TCP link that takes time: each direction is late by a fixed delay, the order and the bytes stay."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self


class DelayedLink:
    """Local ports in front of other local ports; what goes through is `delay_s` late in each direction."""

    def __init__(self, targets: Mapping[str, int], delay_s: float) -> None:
        self._targets, self._delay_s = dict(targets), delay_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self.ports: dict[str, int] = {}
        """The port to use instead of each target's, by its name."""
        self.connections: dict[str, int] = dict.fromkeys(targets, 0)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _end(self) -> None:
        running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _listen(self) -> None:
        for name, target in self._targets.items():

            async def accept(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = name, target: int = target
            ) -> None:
                self.connections[name] += 1
                await asyncio.sleep(2 * self._delay_s)  # the handshake of a real link takes one round trip
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
                await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self.ports[name] = server.sockets[0].getsockname()[1]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.create_task(self._send(late, writer))
        self._tasks.add(sender)
        sender.add_done_callback(self._tasks.discard)
        data = b"x"
        while data:
            try:
                data = await reader.read(65536)
            except OSError:
                data = b""
            late.put_nowait((self._loop.time() + self._delay_s, data))
        await sender

    async def _send(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due, data = await late.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            try:
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()
            except OSError:
                return
