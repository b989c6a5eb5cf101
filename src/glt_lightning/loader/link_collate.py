"""From a Sample of a loader of edges to `Data` or `HeteroData`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from glt_lightning.data.manifest import Manifest
from glt_lightning.loader.collate import Batch, Collate, as_tensor, starting_with
from glt_lightning.sampler.link_task import LinkTask
from glt_lightning.sampler.sample import link_key, seed_key

_NAMES = {"edge_label_index", "edge_label", "src_index", "dst_pos_index", "dst_neg_index", "neg_mask"}


class LinkCollate(Collate):
    """Turns samples into batches with the fields of PyG's `LinkNeighborLoader`: in a homogeneous graph they belong to the batch,
    in others to the edge type, and those of triplets to the node types."""

    def __init__(self, manifest: Manifest, task: LinkTask) -> None:
        self._edge_type = manifest.schema.edge_types[task.edge_type]
        self._labelled = task.mode == "binary"
        self._own = set(manifest.edge_attrs(task.edge_type))
        super().__init__(manifest, [manifest.schema.node_index(self._edge_type[0])])

    @property
    def names(self) -> set[str]:
        return super().names | self._own | _NAMES

    def _add_seeds(self, data: Batch, arrays: Mapping[str, Any]) -> None:
        whole = self._schema.homogeneous
        edges, src, dst = (data if whole else data[each] for each in (self._edge_type, *self._edge_type[::2]))
        edges.input_id = as_tensor(arrays["input_id"])
        for name, values in starting_with(link_key(""), arrays):
            if name not in _NAMES:  # what the loader alone has to know
                continue
            owner = src if name == "src_index" else edges if name == "edge_label_index" else dst
            owner[name] = values
        for name, values in starting_with(seed_key(""), arrays):
            edges[name] = values
        if self._labelled:
            edges.edge_label = _labels(edges.get("edge_label"), edges.edge_label_index, len(edges.input_id))


def _labels(given: torch.Tensor | None, pairs: torch.Tensor, positives: int) -> torch.Tensor:
    """[P + N, ...]: labels of the edges, or ones, and zeros of the negatives."""
    if given is None:
        given = torch.ones(positives, device=pairs.device)
    return torch.cat([given, given.new_zeros(pairs.shape[1] - positives, *given.shape[1:])])
