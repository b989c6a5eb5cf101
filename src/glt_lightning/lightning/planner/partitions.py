"""Other partitions of the same graph: by another algorithm, made to be counted, and with attributes in 16 bits."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glt_lightning.base import numbers
from glt_lightning.graph import LocalPartition, Manifest, node_path, open_array
from glt_lightning.kernels import ENCODINGS, from_bfloat16
from glt_lightning.lightning.planner.batches import Batches
from glt_lightning.partition import follow_batches, partition_graph, plan_partition

if TYPE_CHECKING:
    from glt_lightning.lightning.planner.plan import Plan

_ALGORITHMS = ("random", "streaming", "metis")
_MOST_S = 30.0  # of making a partition that is only counted
_CHUNK_BYTES = 16 << 20


@contextmanager
def by_algorithm(plan: Plan) -> Iterator[tuple[dict[str, Plan], list[str]]]:
    """Gives the plan with a partition by each algorithm, its own first, and why others were left out. The partitions are there
    until the end. Made are those that take at most half a minute, by their plan."""
    data, here = plan.run.data, plan.batches.partition.directory
    options = replace(data.partition, engine="processes", address=None)
    tried, left_out = {options.algorithm_name: plan}, []
    made: dict[str, Any] = {"undirected": data.undirected, "normalize": data.normalize}
    assumed: dict[str, Any] = {"num_neighbors": data.fanouts_of_edges, "batch_size": data.batch_size}
    with tempfile.TemporaryDirectory(dir=here.parent, prefix="plan-") as temporary:
        for name in (each for each in _ALGORITHMS if each not in tried):
            folder, other = Path(temporary) / name, replace(options, algorithm=name)
            planned, error = plan_partition(data.source, folder, other, **made, **assumed)
            if error is not None or planned.wall_s is None or planned.wall_s > _MOST_S:
                takes = (
                    "cannot be made here"
                    if error is not None
                    else f"takes {numbers.duration(planned.wall_s or 0)} to make"
                )
                left_out.append(f"{name} {takes}")
                continue
            print(f"partitioning by {name}, to count its batches", file=sys.stderr, flush=True)
            partition_graph(data.source, folder, follow_batches(other, folder, **assumed), **made)
            batches = Batches(LocalPartition.open(folder), data, plan.run.batches)
            tried[name] = replace(plan, batches=batches, counted=batches.counted(plan.layout))
        yield tried, left_out


def wide_attributes(manifest: Manifest) -> Iterator[tuple[int, str]]:
    """Yields (node type, name) of attributes in float32, labels apart."""
    for t in range(len(manifest.schema.node_types)):
        for name in manifest.node_attrs(t):
            if name != "y" and np.dtype(manifest.arrays[node_path(0, t, name)].dtype) == np.float32:
                yield t, name


def exact_encoding(partition: LocalPartition, node_type: int, name: str) -> str | None:
    """The encoding in 16 bits that changes no value of a float32 attribute; None: there is none."""
    kinds, manifest = ["float16", "bfloat16"], partition.manifest
    for p in range(manifest.num_parts):
        path = node_path(p, node_type, name)
        array = open_array(partition.directory, path, manifest.arrays[path])
        step = max(1, _CHUNK_BYTES * len(array) // max(1, array.nbytes))
        for first in range(0, len(array), step):
            values = np.ascontiguousarray(array[first : first + step])
            kinds = [kind for kind in kinds if _is_exact(kind, values)]
            if not kinds:
                return None
    return kinds[0]


def _is_exact(kind: str, values: np.ndarray) -> bool:
    if not np.isfinite(values).all():  # which encodings refuse
        return False
    with np.errstate(over="ignore"):
        stored = ENCODINGS[kind].encode(values)
    decoded = from_bfloat16(stored) if kind == "bfloat16" else stored.astype(np.float32)
    return bool(np.array_equal(decoded.view(np.uint32), values.view(np.uint32)))


def in_16_bits(plan: Plan, kinds: Mapping[tuple[int, str], str]) -> tuple[dict[str, Any], Plan]:
    """The option ``partition.storage`` for these encodings, and the plan with them, computed from their share of all bytes of
    attributes."""
    manifest = plan.batches.partition.manifest
    types = manifest.schema.node_types
    storage: dict[str, Any] = {}
    for (t, name), kind in kinds.items():
        of = storage if len(types) == 1 else storage.setdefault(types[t], {})
        of[name] = kind
    sizes = {
        (t, name): sum(manifest.arrays[node_path(p, t, name)].bytes for p in range(manifest.num_parts))
        for t in range(len(types))
        for name in manifest.node_attrs(t)
    }
    share = 1 - sum(sizes[key] for key in kinds) / 2 / max(1, sum(sizes.values()))
    probe = replace(plan.probe, train=plan.probe.train.map(lambda cost: cost.scaled(row_bytes=share)))
    counted = None if plan.counted is None else plan.counted.in_row_bytes(share)
    return storage, replace(plan, probe=probe, counted=counted, batches=plan.batches.in_row_bytes(share))
