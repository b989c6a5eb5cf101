"""``python -m lightning pull``: copies a partition, or some of its parts, to this host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from jsonargparse import Namespace

from glt_lightning.cluster.copy_source import open_any_source
from glt_lightning.lightning.cli.config_file import keep_groups
from glt_lightning.lightning.cli.interrupt import interruptible
from glt_lightning.lightning.cli.messages import OneLineParser
from glt_lightning.lightning.cli.parts import part_numbers
from glt_lightning.options import ClusterOptions
from glt_lightning.options.parse import parse_bytes
from glt_lightning.page.numbers import counted, size
from glt_lightning.partition.copies import PullOptions, pull_partition

_CLUSTER = ClusterOptions()
_READ = ("cluster",)  # what pull reads of a configuration
_DESCRIPTION = (
    "Copies a partition, or some of its parts, and checks each piece by its hash. The folder appears when it is complete. What "
    "was copied before an interruption stays beside it, and the same command goes on from there; parts are added to a copy that "
    "exists."
)


def run_pull(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for what is wrong, SystemExit for help and wrong options."""
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument(
        "--config", action="config", help="Configuration whose cluster.security a server needs, in YAML."
    )
    parser.add_argument(
        "--from",
        required=True,
        type=str,
        metavar="SOURCE",
        help="A folder, a URL of fsspec (s3://bucket/parts), or a graph server (host:port).",
    )
    parser.add_argument("--to", required=True, type=str, metavar="FOLDER", help="The folder of the copy.")
    parser.add_argument(
        "--parts", type=str | None, default=None, metavar="0,2", help="The parts that this host needs. Default: all."
    )
    parser.add_argument("--streams", type=int, default=4, help="How many pieces of 64 MiB are fetched at once.")
    parser.add_argument(
        "--limit", type=str | None, default=None, metavar="500MB", help="Most bytes per second. Default: no limit."
    )
    parser.add_argument("--cluster", type=ClusterOptions, default=_CLUSTER, help="Security and deadlines of the job.")
    given = parser.parse_args(keep_groups(argv, _READ))
    options = PullOptions(
        parts=None if given.parts is None else part_numbers(given.parts),
        streams=given.streams,
        limit=None if given.limit is None else parse_bytes("--limit", given.limit),
    )
    folder = Path(given.to)
    kept = (
        f"what was copied is in {folder.with_name(folder.name + '.partial')}, and the same command goes on from there"
    )
    cluster = parser.instantiate_classes(Namespace(cluster=given.cluster)).cluster
    with closing(open_any_source(given["from"], cluster)) as source, interruptible(kept):
        pulled = pull_partition(source, folder, options)
    for piece in pulled.damaged:
        print(f"{folder}: {piece}: it was damaged after it had been copied, and was fetched again.")
    again = f", {counted(pulled.again, 'piece')} again" if pulled.again else ""
    print(
        f"{folder}: {counted(pulled.files, 'file')}, {size(pulled.bytes)}; copied {size(pulled.fetched)}{again}.",
        flush=True,
    )
