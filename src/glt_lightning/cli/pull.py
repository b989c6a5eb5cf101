"""``python -m lightning pull``: copies a partition, or some of its parts, to this host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from glt_lightning.base import counted, size
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.cli.partition import part_numbers
from glt_lightning.cli.run_line import interruptible
from glt_lightning.partition import pull_partition

_DESCRIPTION = (
    "Copies a partition, or some of its parts, and checks each piece by its hash. The folder appears when it is complete. What "
    "was copied before an interruption stays beside it, and the same command goes on from there; parts are added to a copy that "
    "exists."
)


def run_pull(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument("url", type=str, help="A folder, or a URL of fsspec such as s3://bucket/parts.")
    parser.add_argument("folder", type=str, help="The folder of the copy.")
    parser.add_argument(
        "--parts", type=str | None, default=None, metavar="0,2", help="The parts that this host needs. Default: all."
    )
    given = parser.parse_args(list(argv))
    folder = Path(given.folder)
    left = (
        f"what was copied is in {folder.with_name(folder.name + '.partial')}, and the same command goes on from there"
    )
    with interruptible(left):
        pulled = pull_partition(given.url, folder, None if given.parts is None else part_numbers(given.parts))
    print(
        f"{folder}: {counted(pulled.files, 'file')}, {size(pulled.bytes)}; copied {size(pulled.fetched)}.", flush=True
    )
