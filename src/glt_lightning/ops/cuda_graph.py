"""A typed graph in memory that a CUDA device reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from glt_lightning.ops.cuda import Kernels, kernels_of
from glt_lightning.ops.graph import GraphView
from glt_lightning.ops.native import GraphStruct


class DeviceGraph:
    """A typed graph in device memory; a `GraphView` on the other side. Make it with `from_view`."""

    def __init__(self, kernels: Kernels, struct: GraphStruct, keep: Sequence[Tensor | None], view: GraphView) -> None:
        self.kernels, self.struct, self._keep = kernels, struct, keep
        self.address = ctypes.addressof(struct)
        self.num_types, self.num_relations, self.num_nodes = view.num_types, view.num_relations, view.num_nodes
        self.src_types, self.dst_types = view.src_types.tolist(), view.dst_types.tolist()
        self.type_sizes = np.diff(view.type_offsets).tolist()

    @classmethod
    def from_view(cls, view: GraphView, device: Kernels | torch.device | str) -> DeviceGraph:
        """Copies the arrays of the parts that are mapped; takes their bytes of device memory."""
        kernels = kernels_of(device)
        relations, user_ids = view._keep
        tensors: list[Tensor] = []

        def put(array: np.ndarray) -> int:
            tensors.append(kernels.copy(array))
            return tensors[-1].data_ptr()

        def table(arrays: Sequence[np.ndarray | None]) -> int:
            return put(np.array([0 if a is None else put(a) for a in arrays], dtype=np.int64))

        struct = GraphStruct(
            num_types=view.num_types,
            num_relations=view.num_relations,
            num_parts=view.num_parts,
            id_bytes=view.id_bytes,
            shift=view.struct.shift,
            bounds=put(view.bounds),
            hint=put(view._hint),
            src_type=put(view.src_types),
            dst_type=put(view.dst_types),
            key=put(view.keys),
            indptr=table([None if r is None else r.indptr for r in relations]),
            indices=table([None if r is None else r.indices for r in relations]),
            user_ids=table(user_ids),
            edge_base=put(view._edge_base),
            num_edges=put(view._num_edges),
        )
        return cls(kernels, struct, tensors, view)
