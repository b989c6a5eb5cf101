"""`DistDataset`: a partition folder as a process of a script has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import NodeType, OptionError
from glt_lightning.compat.glt.dataset import Dataset, split_at_random
from glt_lightning.compat.glt.given import read_labels
from glt_lightning.graph import LocalPartition, Manifest


class DistDataset(Dataset):
    """A partition folder of ours, and labels of all nodes; or this process's part of a graph in memory; or, for a script of one
    process, the tensors of a `Dataset`.

    Of a folder nothing is copied: the arrays are mapped, by all processes of a host together. ``load`` says which part this
    process maps; a script of one process maps all. Of parts in memory each process collects the whole graph when its first
    loader or its server starts, and writes it to a folder of its own.

    num_partitions, partition_idx: number of parts in memory, and which this process has.  graph_partition: its edges, a `Graph`
    of the ids of the whole graph.  node_feature_partition, edge_feature_partition: the `Feature` of its rows.  node_pb, edge_pb:
    the part of each id, int64 [N] or a `RangePartitionBook`.  All these by type for a heterogeneous graph.
    whole_node_labels: labels by id.  edge_dir: as of a `Dataset`.  node_split: (train, val, test) ids.  node_feat_pb,
    edge_feat_pb, graph_caching, id_filter, id_select: no effect.

    >>> data = glt.distributed.DistDataset()
    >>> data.load("parts", partition_idx=1)
    >>> data.num_partitions, data.parts, data.manifest.num_nodes
    (2, (1,), (10,))
    """

    def __init__(
        self,
        num_partitions: int = 1,
        partition_idx: int = 0,
        graph_partition: Any = None,
        node_feature_partition: Any = None,
        edge_feature_partition: Any = None,
        whole_node_labels: Any = None,
        node_pb: Any = None,
        edge_pb: Any = None,
        node_feat_pb: Any = None,
        edge_feat_pb: Any = None,
        edge_dir: str = "out",
        graph_caching: bool = False,
        node_split: Any = None,
        id_filter: Any = None,
        id_select: Any = None,
    ) -> None:
        rows = node_feature_partition, edge_feature_partition
        super().__init__(graph_partition, *rows, whole_node_labels, edge_dir, node_split)
        if graph_partition is not None and node_pb is None:
            raise OptionError("DistDataset: node_pb: graph_partition needs the part of each node, int64 [N].")
        self.num_partitions, self.partition_idx = num_partitions, partition_idx
        self.node_pb, self.edge_pb = node_pb, edge_pb
        self.loaders = 0  # made so far
        self._folder: Path | None = None
        self._parts: tuple[int, ...] = ()
        self._mapped: dict[tuple[int, ...] | None, LocalPartition] = {}
        self._labels: dict[NodeType, Tensor] = {}

    def load(
        self,
        root_dir: str | Path | None = None,
        partition_idx: int | Sequence[int] = 0,
        graph_mode: str = "ZERO_COPY",
        input_layout: str = "COO",
        feature_with_gpu: bool = True,
        graph_caching: bool = False,
        device_group_list: Any = None,
        whole_node_label_file: str | Path | Mapping[NodeType, str | Path] | None = None,
        device: Any = None,
        *,
        graph_dir: str | Path | None = None,
    ) -> None:
        """Opens a partition folder.

        root_dir, or graph_dir: the folder.  partition_idx: the part, or the parts, of this process.  whole_node_label_file:
        labels of all nodes [N, ...], for folders without ``y``.  The other arguments have no effect: all is mapped, and the
        loaders say what a GPU has.
        """
        if (root_dir is None) == (graph_dir is None):
            raise OptionError(
                "DistDataset.load: root_dir: give the partition folder, once (graph_dir is another name)."
            )
        self._folder = Path(root_dir if root_dir is not None else graph_dir)  # type: ignore[arg-type]
        manifest = Manifest.load(self._folder)
        parts = (partition_idx,) if isinstance(partition_idx, int) else tuple(partition_idx)
        if unknown := [p for p in parts if not 0 <= p < manifest.num_parts]:
            raise OptionError(
                f"partition_idx: {self._folder} has the parts 0 to {manifest.num_parts - 1}, got {unknown[0]}."
            )
        self._parts, self.num_partitions, self.partition_idx = tuple(sorted(set(parts))), manifest.num_parts, parts[0]
        labels = whole_node_label_file if whole_node_label_file is not None else self.node_labels
        self._labels = {} if labels is None else read_labels(labels, manifest.schema)

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise OptionError("DistDataset: no partition folder. Call load(root_dir, partition_idx) first.")
        return self._folder

    @property
    def manifest(self) -> Manifest:
        return Manifest.load(self.folder)

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts of this process."""
        return self._parts

    @property
    def labels_beside(self) -> dict[NodeType, Tensor]:
        """Labels that are not in the partition."""
        if self._folder is None and self.node_labels is not None:
            return read_labels(self.node_labels, self.open().schema)
        return self._labels

    @property
    def in_memory(self) -> bool:
        """It is a part that the other processes have not collected yet."""
        return self._folder is None and self.graph is not None and self.node_pb is not None

    def random_node_split(self, num_val: float, num_test: float) -> None:
        """Splits the nodes of this process's parts; without a folder and books, all nodes."""
        if self.in_memory and not isinstance(self.node_pb, Mapping):
            self.node_split = split_at_random(ids_of_part(self.node_pb, self.partition_idx), num_val, num_test)
            return
        if self._folder is None:
            super().random_node_split(num_val, num_test)
            return
        ids = [each for each in self.map(whole=False).mapped_user_ids(0) if each is not None]
        if len(self.manifest.schema.node_types) > 1:
            raise OptionError("random_node_split: in a heterogeneous graph give init_node_split ids of one node type.")
        self.node_split = split_at_random(torch.from_numpy(np.concatenate(ids).astype("i8")), num_val, num_test)

    def map(self, *, whole: bool) -> LocalPartition:
        """The mapped parts: all of them, or this process's own. Of tensors, the graph as one part."""
        if self._folder is None and self.graph is not None:
            return self.open()
        parts = None if whole else self._parts
        if parts not in self._mapped:
            self._mapped[parts] = LocalPartition.open(self.folder, parts=parts)
        return self._mapped[parts]

    def __getstate__(self) -> dict[str, Any]:
        """Of a pickle, such as that of `torch.multiprocessing.spawn`: the folder, which the other process maps for itself."""
        folder = None if self._folder is None else self._folder.absolute()
        return {**super().__getstate__(), "_folder": folder, "_mapped": {}}

    def close(self) -> None:
        """Releases the maps. Safe to call twice."""
        for each in self._mapped.values():
            each.close()
        self._mapped.clear()


def by_type(given: Any, only: Any) -> dict[Any, Any]:
    """By type; ``only`` is that of a homogeneous graph. Empty for None."""
    return {} if given is None else dict(given) if isinstance(given, Mapping) else {only: given}


def ids_of_part(book: Any, part: int) -> Tensor:
    """int64 [n]: the ids that a book says are of a part."""
    parts: Tensor = book[torch.arange(len(book))]
    return torch.nonzero(parts == part)[:, 0]
