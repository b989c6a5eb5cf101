"""A TCP proxy between two peers that does to their connections what networks do."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

_LONGEST_S = 10.0
_CHUNK = 1 << 16
_LARGE = 1 << 13  # bytes of a piece that is data, not a greeting or a request
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER without any time: closing sends RST


class _Line:
    """A connection and, once made, its continuation. silent: what is said is swallowed, also after `Proxy.heal`."""

    def __init__(self, taken: socket.socket) -> None:
        self.ends = [taken]
        self.silent = False

    def reset(self) -> None:
        for end in self.ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.close()


class Proxy:
    """Listens at ``address`` and passes everything on to ``target``, both ``host:port``. Close it.

    All faults begin and end at once, for good or until `heal`. One thread with an event loop does the work.

    Args:
        target: Where connections lead. Nobody needs to listen there yet.
        delay_s: How long each chunk of bytes is held up, each way. May be set at any time.
    """

    def __init__(self, target: str, delay_s: float = 0.0) -> None:
        self.target, self.delay_s = target, delay_s
        self.connections = 0  # made so far
        self.swallowed = 0  # bytes
        self.flipped = 0
        self._flips = 0
        self._silent = False
        self._lines: dict[asyncio.Task[None], _Line] = {}
        self._listener: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()
        self._port = 0
        try:
            self._do(self._listen)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def cut(self) -> None:
        """Resets all connections; new ones work."""
        self._do(self._cut)

    def swallow(self) -> None:
        """Half-open: connections stay, new ones are taken, and nothing that is said arrives."""
        self._silent = True
        self._do(self._mark)

    def flip(self, times: int) -> None:
        """In each of the next ``times`` large pieces that the target sends, a bit in the middle arrives inverted."""
        self._flips = times

    def refuse(self) -> None:
        """Resets all connections and refuses new ones."""
        self._do(self._refuse)

    def heal(self) -> None:
        """New connections work. One of which something was swallowed stays silent: nobody can tell what is missing."""
        self._silent = False
        self._do(self._listen)

    def close(self) -> None:
        """Resets everything and frees the port. Safe to call twice."""
        if self._thread.is_alive():
            self._do(self._refuse)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_LONGEST_S)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, work: Callable[[], Awaitable[None]]) -> None:
        asyncio.run_coroutine_threadsafe(_awaited(work), self._loop).result(_LONGEST_S)

    # -- the loop's thread

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self._port))
            self._listener.setblocking(False)
            self._port = self._listener.getsockname()[1]
            self._loop.add_reader(self._listener, self._take, self._listener)

    def _take(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):  # whoever knocked is gone again
            line = _Line(listener.accept()[0])
            self.connections += 1
            task = self._loop.create_task(self._serve(line))
            self._lines[task] = line
            task.add_done_callback(self._drop)

    def _drop(self, task: asyncio.Task[None]) -> None:
        self._lines.pop(task).reset()

    async def _cut(self) -> None:
        for task in self._lines:
            task.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _mark(self) -> None:
        for line in self._lines.values():
            line.silent = True

    async def _refuse(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            listener.close()
        await self._cut()

    async def _serve(self, line: _Line) -> None:
        line.silent = self._silent
        line.ends.append(socket.socket())
        taken, made = line.ends
        for end in line.ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, _, port = self.target.rpartition(":")
        try:
            await self._loop.sock_connect(made, (host, int(port)))
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_on(line, taken, made))
                both.create_task(self._pass_on(line, made, taken, self._damaged))
        except* OSError:  # one end is gone, or was never there: so is the other
            pass

    def _damaged(self, chunk: bytes) -> bytes:
        if self._flips == 0 or len(chunk) < _LARGE:
            return chunk
        self._flips, self.flipped = self._flips - 1, self.flipped + 1
        middle = len(chunk) // 2
        return chunk[:middle] + bytes([chunk[middle] ^ 4]) + chunk[middle + 1 :]

    async def _pass_on(
        self, line: _Line, source: socket.socket, sink: socket.socket, change: Callable[[bytes], bytes] = bytes
    ) -> None:
        while chunk := change(await self._loop.sock_recv(source, _CHUNK)):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if line.silent:
                self.swallowed += len(chunk)
                continue
            await self._loop.sock_sendall(sink, chunk)
        if not line.silent:
            sink.shutdown(socket.SHUT_WR)


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()
