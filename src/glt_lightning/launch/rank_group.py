"""torchrun for a launched job: exits with the status of the rank that failed first, and writes that rank to a file.

    python -m glt_lightning.launch.rank_group TORCHRUN_OPTIONS -m glt_lightning fit ...

torchrun itself exits with status 1 for any failure of a rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from glt_lightning.launch.plan import FAILURE_VARIABLE


def main() -> None:
    """Runs the ranks of this host to their end."""
    report = os.environ.pop(FAILURE_VARIABLE, None)  # a rank that launches something has a report of its own
    try:
        torchrun(sys.argv[1:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        status = 128 - failure.exitcode if failure.exitcode < 0 else failure.exitcode
        reason = f"killed by {signal.Signals(-failure.exitcode).name}" if failure.exitcode < 0 else f"status {status}"
        if report is not None:
            Path(report).parent.mkdir(parents=True, exist_ok=True)
            Path(report).write_text(json.dumps({"rank": rank, "status": status, "reason": reason}))
        sys.exit(status)


if __name__ == "__main__":
    main()
