"""From a Sample of a loader of edges to `Data` or `HeteroData`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from glt_lightning.graph import Manifest
from glt_lightning.loader.collate import Batch, Collate, as_tensor, starting_with
from glt_lightning.loader.times import SEED_TIME
from glt_lightning.sampling import TARGET_ID, LinkTask, link_key, of_type, seed_key, target_name

_NAMES = {"edge_label_index", "edge_label", "src_index", "dst_pos_index", "dst_neg_index", "neg_mask"}
_TIMES = {"edge_label_time", SEED_TIME}


class LinkCollate(Collate):
    """Turns samples into batches with the fields of PyG's `LinkNeighborLoader`: in a homogeneous graph they belong to the batch,
    in others to the edge type, and those of triplets to the node types. With several edge types in a loader, all fields belong
    to the edge type. manifest: of the graph.  batches: of what batches have.  timed: samples have the times of edges."""

    def __init__(self, manifest: Manifest, batches: Manifest, tasks: Sequence[LinkTask], timed: bool) -> None:
        self._tasks, self._timed, self._stored = tasks, timed, manifest.schema
        self._is_bfloat16 = partial(manifest.is_bfloat16, "edges")
        self._own = {name for task in tasks for name in manifest.edge_attrs(task.edge_type)}
        self._attrs = {task.edge_type: _target_names(manifest, task) for task in tasks}
        super().__init__(batches, [task.ends(manifest.schema)[0] for task in tasks])

    @property
    def names(self) -> set[str]:
        attrs = {name for names in self._attrs.values() for name in names}
        return super().names | self._own | _NAMES | attrs | (_TIMES if self._timed else set())

    def _add_seeds(self, data: Batch, arrays: Mapping[str, Any]) -> None:
        for i, task in enumerate(self._tasks):
            self._add_edges(data, task, of_type(task.edge_type, "") if i else "", arrays)

    def _add_edges(self, data: Batch, task: LinkTask, prefix: str, arrays: Mapping[str, Any]) -> None:
        edge_type = self._stored.edge_types[task.edge_type]
        edges = src = dst = data if self._schema.homogeneous else data[edge_type]
        if len(self._tasks) == 1 and not self._schema.homogeneous:
            src, dst = (data[self._stored.node_types[t]] for t in task.ends(self._stored))
        edges.input_id = as_tensor(arrays[seed_key(f"{prefix}input_id") if prefix else "input_id"])
        for name, values in starting_with(link_key(prefix), arrays):
            if attr := self._attrs[task.edge_type].get(name):
                is_bfloat16 = attr != "e_id" and self._is_bfloat16(task.edge_type, attr)  # which numpy lacks
                edges[name] = values.view(torch.bfloat16) if is_bfloat16 else values
            if name not in _NAMES:  # what the loader alone has to know, and the fields of further edge types
                continue
            owner = src if name == "src_index" else edges if name == "edge_label_index" else dst
            owner[name] = values
        for name, values in starting_with(seed_key(prefix), arrays):
            if name == SEED_TIME and self._timed:
                if task.mode == "triplet":
                    src.seed_time = dst.seed_time = values
                else:
                    edges.edge_label_time = _of_all(values, edges.edge_label_index.shape[1])
            elif "/" not in name:
                edges[name] = values
        if task.mode == "binary":
            edges.edge_label = _labels(edges.get("edge_label"), edges.edge_label_index, len(edges.input_id))


def _of_all(times: torch.Tensor, pairs: int) -> torch.Tensor:
    """[P + N]: times of the edges, then those of negatives: negative j has that of edge j mod P."""
    return times if len(times) == pairs else times[torch.arange(pairs, device=times.device) % len(times)]


def _target_names(manifest: Manifest, task: LinkTask) -> dict[str, str]:
    """Name in a batch -> attribute, of the edges to predict."""
    attrs = {target_name(name): name for name in manifest.edge_attrs(task.edge_type)}
    return attrs | {TARGET_ID: "e_id"} if task.attrs else {}


def _labels(given: torch.Tensor | None, pairs: torch.Tensor, positives: int) -> torch.Tensor:
    """[P + N, ...]: labels of the edges, or ones, and zeros of the negatives."""
    if given is None:
        given = torch.ones(positives, device=pairs.device)
    return torch.cat([given, given.new_zeros(pairs.shape[1] - positives, *given.shape[1:])])
