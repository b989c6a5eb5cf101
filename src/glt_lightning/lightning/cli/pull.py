"""``python -m lightning pull``: copies a partition, or some of its parts, to this host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from glt_lightning.lightning.cli.messages import OneLineParser
from glt_lightning.lightning.cli.partition import interruptible
from glt_lightning.lightning.cli.parts import part_numbers
from glt_lightning.options.parse import parse_bytes
from glt_lightning.page.numbers import counted, size
from glt_lightning.partition.copies import PullOptions, open_copy_source, pull_partition

_DESCRIPTION = (
    "Copies a partition, or some of its parts, and checks each piece by its hash. The folder appears when it is complete. What "
    "was copied before an interruption stays beside it, and the same command goes on from there; parts are added to a copy that "
    "exists."
)


def run_pull(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for what is wrong, SystemExit for help and wrong options."""
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument(
        "--from", required=True, type=str, metavar="SOURCE", help="A folder, or a URL of fsspec: s3://bucket/parts."
    )
    parser.add_argument("--to", required=True, type=str, metavar="FOLDER", help="The folder of the copy.")
    parser.add_argument(
        "--parts", type=str | None, default=None, metavar="0,2", help="The parts that this host needs. Default: all."
    )
    parser.add_argument("--streams", type=int, default=4, help="How many pieces of 64 MiB are fetched at once.")
    parser.add_argument(
        "--limit", type=str | None, default=None, metavar="500MB", help="Most bytes per second. Default: no limit."
    )
    given = parser.parse_args(list(argv))
    options = PullOptions(
        parts=None if given.parts is None else part_numbers(given.parts),
        streams=given.streams,
        limit=None if given.limit is None else parse_bytes("--limit", given.limit),
    )
    folder = Path(given.to)
    kept = (
        f"what was copied is in {folder.with_name(folder.name + '.partial')}, and the same command goes on from there"
    )
    with closing(open_copy_source(given["from"])) as source, interruptible(kept):
        pulled = pull_partition(source, folder, options)
    again = f", {counted(pulled.again, 'piece')} again" if pulled.again else ""
    print(
        f"{folder}: {counted(pulled.files, 'file')}, {size(pulled.bytes)}; copied {size(pulled.fetched)}{again}.",
        flush=True,
    )
