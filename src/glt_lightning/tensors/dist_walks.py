"""Random walks from rows of a `DistGraph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, node_type_key
from glt_lightning.kernels import MOST_STEPS, WalkRule, hop_key
from glt_lightning.sampling import WalkStart, fault_of, role_key, walk_through
from glt_lightning.tensors.dist_values import rows_of_index

if TYPE_CHECKING:
    from glt_lightning.tensors.dist_graph import DistGraph

_AT_ONCE = 1 << 20  # walks


def random_walks(
    graph: DistGraph,
    rows: Any,
    length: int | None,
    metapath: Sequence[Any] | None,
    walks: int,
    chances: Mapping[str, float],
    *,
    prob: str | None,
    key: int,
) -> Tensor:
    """`DistGraph.random_walk`. chances: ``restart`` and ``stop``."""
    spaces = [graph.space(each, "edge") for each in ([None] if metapath is None else metapath)]
    if not spaces:
        raise DataError("random_walk: metapath: expected edge types, got none. Leave it out for the only edge type.")
    length = len(spaces) if length is None and metapath is not None else length
    _require_counts(length, walks)
    assert length is not None
    rule = WalkRule(edge_types=tuple(space.index for space in spaces), length=length, **_restarts(chances))
    schema = graph.schema
    if fault := fault_of([schema.edge_types[space.index] for space in spaces], length > len(spaces)):
        raise DataError(f"random_walk: metapath: {fault}")
    manifest = graph.reader.manifest
    having = [prob if prob in manifest.weights(r) else None for r in range(len(schema.edge_types))]
    weights = tuple(having) if prob is not None else ()
    if prob is not None and not any(weights[space.index] for space in spaces):
        manifest.require_weights(tuple(prob if r == spaces[0].index else None for r in range(len(having))))
    root = graph.space(spaces[0].of[2], "node")
    at = rows_of_index(rows, root.num_rows)
    root.parts_of(at)  # raises for a row that there is not
    types = np.array([root.index, *(schema.source_types()[spaces[j % len(spaces)].index] for j in range(length))])
    first = np.array(manifest.offsets)[types]
    role = hop_key(role_key(key, "walk"), 0, node_type_key(str(root.of)))
    found = np.empty((len(at), walks, length + 1), dtype=np.int64)
    found[:, :, 0] = at[:, None]
    step = max(1, _AT_ONCE // walks)
    for begin in range(0, len(at), step):
        gids = at[begin : begin + step] + manifest.offsets[root.index]
        start = WalkStart(rule=rule, roots=gids, walks=walks, key=role)
        trace = walk_through(manifest, *graph.reader.places, start, weights).trace.reshape(len(gids), walks, length)
        found[begin : begin + step, :, 1:] = np.where(trace < 0, -1, trace - first[1:])
    return torch.from_numpy(found)


def _require_counts(length: Any, walks: Any) -> None:
    for name, value in (("length", length), ("walks", walks)):
        if type(value) is not int or value < 1:
            raise DataError(f"random_walk: {name}: expected an integer >= 1, got {value!r:.50}.")
    if length * walks > MOST_STEPS:
        raise DataError(
            f"random_walk: {walks} walks of {length} steps: expected at most {MOST_STEPS} steps from one row. Call it several "
            "times with other keys."
        )


def _restarts(chances: Mapping[str, float]) -> dict[str, Any]:
    """``restart`` and ``ends`` of a `WalkRule`."""
    for name, value in chances.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1:
            raise DataError(f"random_walk: {name}: expected a probability, 0 to 1; got {value!r:.50}.")
    if all(chances.values()):
        raise DataError("random_walk: stop: excludes restart: a walk ends, or goes back to its root. Give one of them.")
    ends = bool(chances["stop"])
    return {"restart": WalkRule.threshold(chances["stop" if ends else "restart"]), "ends": ends}
