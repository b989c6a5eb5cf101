"""Copies to a host the parts that it needs: ``python -m glt_lightning.launch.copy``, with the rest as JSON on stdin."""

from __future__ import annotations

import json
import sys
from contextlib import closing

from glt_lightning.cluster.copy_source import open_any_source
from glt_lightning.cluster.placement import placed_parts
from glt_lightning.errors import GLTError
from glt_lightning.options import ClusterOptions, SecurityOptions
from glt_lightning.page.numbers import counted, size
from glt_lightning.partition.copies import PullOptions, pull_partition


def main() -> None:
    """stdin: source and folder; the slots, of how many, whose parts are wanted; security."""
    given = json.load(sys.stdin)
    cluster = ClusterOptions(security=SecurityOptions(**given["security"]))
    try:
        with closing(open_any_source(given["source"], cluster)) as source:
            num_parts = int(source.manifest()["num_parts"])
            parts = sorted({p for slot in given["slots"] for p in placed_parts(slot, given["of"], num_parts)})
            pulled = pull_partition(source, given["folder"], PullOptions(parts=parts), progress=False)
    except (GLTError, OSError) as error:
        sys.exit(f"error: {error}")
    for piece in pulled.damaged:
        print(f"{given['folder']}: {piece}: it was damaged after it had been copied, and was fetched again")
    files = f"{counted(pulled.files, 'file')}, {size(pulled.bytes)}"
    print(f"{given['folder']}: parts {parts}, {files}; copied {size(pulled.fetched)}")


if __name__ == "__main__":
    main()
