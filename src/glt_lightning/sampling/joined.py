"""Joins batches that were sampled apart into one, without an edge between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.sampling.sample import FLIPPED, Sample, link_key, seed_key

_NODES, _EDGES = "num_sampled_nodes", "num_sampled_edges"
_SEEDS = ("input_id", seed_key(""), link_key(""))
_UNJOINABLE = ("src_index", "dst_pos_index", "dst_neg_index", "src_neg_index", "neg_mask")


def join_samples(
    samples: Sequence[Mapping[str, Any]], ends: Sequence[tuple[int, int]], pair: tuple[int, int] = (0, 0)
) -> dict[str, Any]:
    """Joins the arrays of samples of one configuration, in the host's memory.

    Nodes and edges are in the order of their hops, and in each hop in that of the samples: as in a batch with the seeds of all,
    in which each sample has its own copy of a node.

    samples: arrays of each `Sample`, without negatives.  ends: the node types of the sources and destinations of each edge
    type.  pair: those of the edges to predict.
    Returns the arrays of one `Sample`; those of a single one as they are.

    Raises:
        DataError: For arrays that cannot be joined: column pointers, negatives, and rows of ``aggregate_first``.

    Example:
        >>> one = {"node/0/n_id": np.array([4, 2, 7]), "num_sampled_nodes": np.array([[1, 2]])}
        >>> one |= {"edge/0/edge_index": np.array([[1, 2], [0, 0]]), "num_sampled_edges": np.array([[2]])}
        >>> joined = join_samples([one, one], ends=[(0, 0)])
        >>> joined["node/0/n_id"], joined["edge/0/edge_index"]
        (array([4, 4, 2, 7, 2, 7]), array([[2, 3, 4, 5],
               [0, 0, 1, 1]]))
    """
    if len(samples) == 1:
        return dict(samples[0])
    nodes = np.stack([each[_NODES] for each in samples])  # [samples, node types, hops]
    places = [_places(nodes[:, t]) for t in range(nodes.shape[1])]
    # edges of other subgraphs than the sampled one belong to no hop, and keep the order of the samples
    has_hops = _EDGES in samples[0] and not any(name.endswith(FLIPPED) for name in samples[0])
    per_hop = np.stack([each[_EDGES] for each in samples]) if has_hops else None
    found: dict[str, Any] = {}
    for name in samples[0]:
        parts = [each[name] for each in samples]
        kind, of, field = (*name.split("/", 2), "", "")[:3]
        if name in (_NODES, _EDGES):
            found[name] = np.sum(parts, axis=0)
        elif kind == "node":
            values = _numbered(parts, samples) if field == Sample.TREE_OF else np.concatenate(parts)
            found[name] = _at(np.concatenate(places[int(of)]), values)
        elif kind == "edge" and field == "edge_index":
            found[name] = _moved(parts, [places[t] for t in ends[int(of)]], _order(parts, per_hop, int(of)))
        elif kind == "edge" and (field == FLIPPED or "/" not in field):
            values, order = np.concatenate(parts), _order(parts, per_hop, int(of))
            found[name] = values if order is None else _at(order, values)
        elif name == link_key("edge_label_index"):
            found[name] = _moved(parts, [places[t] for t in pair], None)
        elif name.startswith(_SEEDS) and name.rpartition("/")[2] not in _UNJOINABLE:
            found[name] = np.concatenate(parts)
        else:
            raise DataError(f"join_samples: {name}: samples with such an array cannot be joined.")
    return found


def _places(counts: np.ndarray) -> list[np.ndarray]:
    """Returns for each sample the positions of its rows where those of all are in the order of hops. counts: [samples, hops]."""
    begins = np.concatenate([[0], np.cumsum(counts.T.ravel())[:-1]]).reshape(counts.T.shape).T
    shifts = begins - (np.cumsum(counts, axis=1) - counts)
    return [np.arange(own.sum()) + np.repeat(shift, own) for own, shift in zip(counts, shifts, strict=True)]


def _at(positions: np.ndarray, values: np.ndarray) -> np.ndarray:
    found = np.empty_like(values)
    found[positions] = values
    return found


def _order(parts: Sequence[np.ndarray], per_hop: np.ndarray | None, edge_type: int) -> np.ndarray | None:
    """Returns the position of each edge; None: they stay in the order of the samples."""
    return None if per_hop is None else np.concatenate(_places(per_hop[:, edge_type]))


def _moved(parts: Sequence[np.ndarray], places: Sequence[Sequence[np.ndarray]], order: np.ndarray | None) -> np.ndarray:
    """Joins pairs of nodes [2, E] of samples. places: of the nodes at both ends, by sample."""
    rows = [
        np.concatenate([at[part[end]] for at, part in zip(places[end], parts, strict=True)]).astype(parts[0].dtype)
        for end in (0, 1)
    ]
    return np.stack(rows if order is None else [_at(order, row) for row in rows])


def _numbered(parts: Sequence[np.ndarray], samples: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Joins the numbers of examples of nodes: those of a sample follow those of the samples before it."""
    counts = [sum(len(v) for name, v in each.items() if name.rpartition("/")[2] == "input_id") for each in samples]
    first = np.cumsum([0, *counts[:-1]])
    return np.concatenate([part + part.dtype.type(begin) for part, begin in zip(parts, first, strict=True)])
