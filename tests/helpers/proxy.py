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
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER without any time: closing sends RST


class _Line:
    """A connection and its continuation. silent: what is said is swallowed, also after `Proxy.heal`."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self.writers = writers
        self.silent = False

    def reset(self) -> None:
        for writer in self.writers:
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


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
        self._silent = False
        self._lines: set[_Line] = set()
        self._server: asyncio.Server | None = None
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
            self._do(self._end)
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
        if self._server is None:
            self._server = await asyncio.start_server(self._take, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        for line in self._lines:
            line.reset()

    async def _mark(self) -> None:
        for line in self._lines:
            line.silent = True

    async def _refuse(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self._cut()

    async def _end(self) -> None:
        await self._refuse()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:  # by `close`
            _Line(writer).reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:  # nobody is there
            _Line(writer).reset()
            return
        line = _Line(writer, back)
        line.silent = self._silent
        self._lines.add(line)
        try:
            await asyncio.gather(self._pass_on(line, reader, back), self._pass_on(line, there, writer))
        except OSError:  # one end is gone: so is the other
            pass
        finally:
            line.reset()
            self._lines.discard(line)

    async def _pass_on(self, line: _Line, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while chunk := await source.read(_CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if line.silent:
                self.swallowed += len(chunk)
                continue
            sink.write(chunk)
            await sink.drain()
        if not line.silent:
            sink.write_eof()


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()
