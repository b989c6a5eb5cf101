"""``python -m lightning share``: serves the files of a partition folder to hosts that copy them with ``pull``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from jsonargparse import Namespace

from glt_lightning.cluster.share import SharedFolder, share_files
from glt_lightning.lightning.cli.config_file import keep_groups
from glt_lightning.lightning.cli.interrupt import Told
from glt_lightning.lightning.cli.messages import OneLineParser
from glt_lightning.options import ClusterOptions

_CLUSTER = ClusterOptions()
_READ = ("cluster",)  # what share reads of a configuration
_DESCRIPTION = (
    "Serves the files of a partition folder to hosts that copy them: python -m lightning pull --from HOST:PORT. It maps no part "
    "and needs no memory. Stop it with SIGTERM or Ctrl-C."
)


def run_share(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for what is wrong, SystemExit for help and wrong options."""
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument("folder", type=str, help="The folder of the partition, with all parts or some.")
    parser.add_argument(
        "--config", action="config", help="Configuration whose cluster.security other hosts need, in YAML."
    )
    parser.add_argument(
        "--address",
        type=str,
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="Where to listen. Default: a free port, for this host alone.",
    )
    parser.add_argument("--cluster", type=ClusterOptions, default=_CLUSTER, help="Security and deadlines of the job.")
    given = parser.parse_args(keep_groups(argv, _READ))
    cluster = parser.instantiate_classes(Namespace(cluster=given.cluster)).cluster
    with Told() as told:
        folder = SharedFolder.open(given.folder)
        with closing(share_files(folder, given.address, cluster)) as server:
            parts = f"parts {list(folder.parts)} of {folder.manifest.num_parts}"
            line = f"sharing {folder.directory}: {parts}, listening at {server.address}"
            told.wait(lambda: print(line, flush=True))
