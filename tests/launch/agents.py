"""An agent in a process of its own, as the launcher would talk to it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from glt_lightning.launch.children import descendants
from glt_lightning.launch.messages import FROM_AGENT, PROTOCOL, decode, encode


class TalkingTo:
    """The launcher's side."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        self._pieces: dict[str, list[str]] = {}

    @property
    def text(self) -> dict[str, str]:
        """The output of each process so far."""
        return {name: "".join(pieces) for name, pieces in self._pieces.items()}

    def send(self, op: str, **fields: Any) -> None:
        self.send_bytes(encode(op, **fields))

    def send_bytes(self, data: bytes) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(data)
        self.popen.stdin.flush()

    def start(self, name: str, *argv: str, **fields: Any) -> None:
        given = {"env": {}, "cwd": "/", "input": None, "failure": None} | fields
        self.send("start", id=name, argv=list(argv), **given)

    def until(self, op: str, **fields: Any) -> dict[str, Any]:
        """The next such message; output that comes before it is kept."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            message = decode(line, FROM_AGENT)
            if message["op"] == "lines":
                self._pieces.setdefault(message["id"], []).append(message["text"])
            if message["op"] == op and fields.items() <= message.items():
                return message
        raise AssertionError(f"the agent ended before {op}")

    def hang_up(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()

    def family(self) -> list[int]:
        return descendants(self.popen.pid)


@contextlib.contextmanager
def talking_to(stop_s: float = 5.0, silence_s: float = 60.0) -> Iterator[TalkingTo]:
    argv = [sys.executable, "-m", "glt_lightning", "agent"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as popen:
        agent = TalkingTo(popen)
        try:
            agent.send("begin", protocol=PROTOCOL, stop_s=stop_s, silence_s=silence_s)
            agent.until("hello")
            yield agent
        finally:
            with contextlib.suppress(OSError):
                agent.hang_up()
            try:
                popen.wait(20)
            except subprocess.TimeoutExpired:
                popen.kill()
                raise
