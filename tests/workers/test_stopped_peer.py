"""A peer that stops reading its answers holds up nobody else."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np

from glt_lightning.workers import Message
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.credentials import Credentials
from glt_lightning.workers.transport.flight_transport import FlightTransport

ANSWER = np.zeros(64 << 20, dtype=np.uint8)
# Asks for more than connections hold, then waits to be stopped.
GREEDY = """
import sys
from glt_lightning.workers.transport.credentials import Credentials
from glt_lightning.workers.transport.flight_transport import FlightTransport

connection = FlightTransport(Credentials()).connect(sys.argv[1], {"name": "greedy"}, 10.0)
print("here", flush=True)
sys.stdin.readline()
asked = [connection.call("large", {}, bulk=True) for _ in range(12)]
print("asked", flush=True)
sys.stdin.readline()
"""


def test_others_are_answered() -> None:
    service = Service(lambda hello: {}, {"large": lambda message, caller: Message({}, ANSWER)}, {})
    transport = FlightTransport(Credentials())
    server = transport.serve("127.0.0.1:0", service)
    greedy = subprocess.Popen(
        [sys.executable, "-c", GREEDY, server.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert greedy.stdin is not None
        assert greedy.stdout is not None
        assert greedy.stdout.readline() == "here\n"
        greedy.stdin.write("ask\n")
        greedy.stdin.flush()
        assert greedy.stdout.readline() == "asked\n"
        greedy.send_signal(signal.SIGSTOP)
        connection = transport.connect(server.address, {"name": "modest"}, 10.0)
        for _ in range(3):
            assert len(connection.call("large", {}, bulk=True).result(20.0).body) == len(ANSWER)
        connection.close()
    finally:
        greedy.kill()
        greedy.communicate()
        server.close()
