"""A graph server as a process of its own, without what the command line imports: it is back within a second.

    python -m tests.faults.server PLAN

PLAN: a `ServerPlan` as JSON. Says where it listens, and ends in order with SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import threading

from glt_lightning.workers import HostedServer, ServerPlan


def main() -> None:
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: told.set())
    server = HostedServer(ServerPlan.from_json(json.loads(sys.argv[1])))
    print("listening at", server.address, flush=True)
    while not told.wait(0.2):  # in steps: a signal that another thread received is handled when this one wakes
        continue
    server.close()


if __name__ == "__main__":
    main()
