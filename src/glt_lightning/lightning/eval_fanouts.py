"""Fan-outs of training and evaluation: whether they fit the graph, and those of evaluation where the user gives none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glt_lightning.base import MAX_FANOUT, Fanouts, GraphSchema
from glt_lightning.sampling import fanout_table

# A batch holds each edge at most once, so this bounds any evaluation batch: about what [15, 10, 5] x 1024 draws. The mean
# degree would allow all neighbours in some larger graphs, but it bounds nothing where a few nodes have a million neighbours.
MOST_EDGES = 1_000_000


def check_fanouts(schema: GraphSchema, num_neighbors: Fanouts, eval_num_neighbors: Fanouts | None) -> None:
    """Raises `OptionError` for fan-outs that do not fit the edge types of the graph."""
    fanout_table(num_neighbors, schema)
    if eval_num_neighbors is not None:
        fanout_table(eval_num_neighbors, schema, "eval_num_neighbors")


def eval_fanouts(num_neighbors: Fanouts, num_edges: int) -> tuple[Fanouts, str]:
    """Fan-outs, and why these. A function of training's and the number of edges of the graph, all edge types, alone.

    A model that was trained on a few neighbours of a dense graph loses accuracy where it is evaluated on as few.
    """
    if num_edges <= MOST_EDGES:
        return _each(num_neighbors, all_neighbours=True), f"all neighbours, as the graph has {num_edges:,} edges"
    why = f"twice those of training, as the graph has {num_edges:,} edges, more than {MOST_EDGES:,}"
    return _each(num_neighbors, all_neighbours=False), why


def _each(num_neighbors: Fanouts, all_neighbours: bool) -> Fanouts:
    if isinstance(num_neighbors, Mapping):
        return {edge_type: _of_hops(hops, all_neighbours) for edge_type, hops in num_neighbors.items()}
    return _of_hops(num_neighbors, all_neighbours)


def _of_hops(hops: Sequence[int], all_neighbours: bool) -> list[int]:
    return [-1 if all_neighbours or k == -1 else min(2 * k, MAX_FANOUT) for k in hops]
