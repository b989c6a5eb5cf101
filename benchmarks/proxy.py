"""A TCP proxy that holds back all it carries: python benchmarks/proxy.py HOST:PORT DELAY_MS

Prints its address; ends with stdin.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Bytes arrive in order, each ``delay_s`` after it was sent."""
    loop = asyncio.get_running_loop()
    held: deque[tuple[float, bytes]] = deque()
    came = asyncio.Event()

    async def deliver() -> None:
        while True:
            while not held:
                came.clear()
                await came.wait()
            due, data = held.popleft()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    task = asyncio.create_task(deliver())
    try:
        while data := await reader.read(1 << 20):
            held.append((loop.time() + delay_s, data))
            came.set()
    except ConnectionError:
        writer.close()
    held.append((loop.time() + delay_s, b""))
    came.set()
    await asyncio.gather(task, return_exceptions=True)


async def main(target: str, delay_s: float) -> None:
    host, _, port = target.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port), limit=1 << 22)
        await asyncio.gather(carry(reader, back, delay_s), carry(there, writer, delay_s))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]) / 1000))
