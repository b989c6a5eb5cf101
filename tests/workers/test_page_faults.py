"""A process that receives keeps the memory that it takes and frees for each piece of a body."""

from __future__ import annotations

import subprocess
import sys

# a process of its own: malloc remembers the largest array that was freed before
PROGRAM = """
import resource

import numpy as np

from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.credentials import Credentials
from glt_lightning.workers.transport.flight_transport import FlightTransport

transport = FlightTransport(Credentials())
server = transport.serve("127.0.0.1:0", Service(lambda hello: {}, {}, {}))
connection = transport.connect(server.address, {"name": "test"}, 30)


def take_and_free():
    pieces = [np.ones(2 << 20, dtype=np.uint8) for _ in range(8)]


take_and_free()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    take_and_free()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults * resource.getpagesize() / (20 * 8 << 21))
connection.close()
server.close()
"""


def test_memory_of_pieces_is_not_faulted_in_anew():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.2  # pages faulted in per page taken: 1 where malloc hands all of them back
