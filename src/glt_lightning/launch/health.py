"""Waits until a graph server is healthy: ``python -m glt_lightning.launch.health``, with its address as JSON on stdin.

`serve --health` asks the same question once, and imports Lightning before.
"""

from __future__ import annotations

import json
import sys
import time

from glt_lightning.cluster.server_status import ask_status
from glt_lightning.errors import GLTError
from glt_lightning.options import ClusterOptions

_PAUSE_S = 0.2


def main() -> None:
    """Ends with 0 when the server is healthy, with 1 and its last answer after ``seconds``."""
    given = json.load(sys.stdin)
    deadline = time.monotonic() + given["seconds"]
    while True:
        try:
            ask_status(given["address"], ClusterOptions(security=given["security"]))
            return
        except GLTError as error:
            if time.monotonic() > deadline:
                sys.exit(f"error: {error}")
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
