"""``python -m lightning neighbours``: the nodes whose embeddings are nearest to those of a node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.inference import nearest
from glt_lightning.lightning import EMBEDDING, read_embeddings

_DESCRIPTION = "Prints the nodes whose embeddings are nearest to that of a node, the nearest first, one a line."


def run_neighbours(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for what is wrong, SystemExit for help and wrong options."""
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument("folder", type=str, help="The folder that embed wrote.")
    parser.add_argument(
        "--of", type=str, required=True, metavar="ID", help="The node: its id in your table, or its n_id."
    )
    parser.add_argument("--k", type=int, default=10, help="How many.")
    parser.add_argument("--metric", type=str, default="cosine", help="cosine, dot, or l2, the Euclidean distance.")
    parser.add_argument("--index", type=str, default="exact", help="exact, or hnsw, which misses a few.")
    given = parser.parse_args(list(argv))
    found = read_embeddings(given.folder)
    ids = found.get("id", found["n_id"])
    at = np.flatnonzero(ids.astype(str) == given.of)
    if not len(at):
        raise DataError(
            f"--of: no node of {given.folder} has the id {given.of!r}. Its {len(ids):,} nodes have ids such as "
            f"{', '.join(map(str, ids[:3]))}."
        )
    rows = found[EMBEDDING]
    positions, near = nearest(rows, rows[at[:1]], given.k + 1, metric=given.metric, index=given.index)
    others = [(p, n) for p, n in zip(positions[0], near[0], strict=True) if p not in (at[0], -1)][: given.k]
    for position, value in others:
        print(f"{ids[position]}\t{value:.4f}", flush=True)
