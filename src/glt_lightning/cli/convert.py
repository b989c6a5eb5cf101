"""``python -m lightning partition --from dgl DIR --to FOLDER``: the partition of another system becomes one of ours."""

from __future__ import annotations

from collections.abc import Sequence

from glt_lightning.base import OptionError, counted
from glt_lightning.cli.interrupt import interruptible
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.compat import KINDS, convert_partition, read_labels

_DESCRIPTION = (
    "Converts a partition of GraphLearn-for-PyTorch, DGL or torch_geometric.distributed: the same parts and ids. The graph is "
    "read into memory."
)


def run_convert(argv: Sequence[str], prog: str) -> None:
    """Raises `GLTError` for what is wrong, SystemExit for help and wrong options."""
    config = _parser(prog).parse_args(list(argv))
    kind, folder = config["from"]
    if kind not in KINDS:
        raise OptionError(f"--from: expected one of {', '.join(KINDS)}, and a folder; got {kind!r}.")
    labels = read_labels(config.labels or [])
    with interruptible(f"nothing is left of {config.to}"):
        manifest = convert_partition(
            kind,
            folder,
            config.to,
            python=config.python,
            labels=labels,
            edge_dir=config.edge_dir,
            timeout_s=config.timeout_s,
        )
    numbers = f"{counted(sum(manifest.num_nodes), 'node')}, {counted(sum(manifest.num_edges), 'edge')}"
    print(f"converted {folder} to {config.to}: {counted(manifest.num_parts, 'part')}, {numbers}.", flush=True)


def _parser(prog: str) -> OneLineParser:
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument(
        "--from", nargs=2, required=True, metavar=("KIND", "DIR"), help=f"{', '.join(KINDS)}; its folder."
    )
    parser.add_argument("--to", type=str, required=True, metavar="FOLDER", help="Folder of the partition to write.")
    parser.add_argument("--python", type=str | None, default=None, help="For dgl: a Python that has the package dgl.")
    parser.add_argument(
        "--labels",
        type=str,
        nargs="+",
        default=None,
        metavar="FILE",
        help="Labels of all nodes, .pt or .npy, which glt and pyg keep apart; TYPE=FILE in a graph with several node types.",
    )
    parser.add_argument(
        "--edge_dir", type=str, default="in", help="out: batches have out-neighbours, as GLT's do unless it says 'in'."
    )
    parser.add_argument("--timeout_s", type=float, default=3600.0, help="How long DGL may take to read its partition.")
    return parser
