"""A batch as named arrays, and the draft of one that still needs memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glt_lightning.sampling.counters import Counters

_ALIGN = 64


def node_key(node_type: int, name: str) -> str:
    """Name of a node array in a Sample."""
    return f"node/{node_type}/{name}"


def edge_key(edge_type: int, name: str) -> str:
    """Name of an edge array in a Sample."""
    return f"edge/{edge_type}/{name}"


# Of the edges of a type, int64: `kernels.build.column_pointers`, and what `kernels.build.by_source` writes. No attribute of
# an edge has such a name.
COLUMN_POINTERS, BY_SOURCE = "edge_index/colptr", "edge_index/by_source"
ROW = "n_id/row"  # of nodes, int64 [n]: their numbers in the type, which no attribute can be called, either
TREE_OF = "batch"  # the name of what a disjoint batch tells of each node: the example whose tree it is in
FLIPPED = "edge_index/is_flipped"  # of edges, bool [e]
VISITS, EDGE_WEIGHT = (
    "visits",
    "edge_weight",
)  # of edges that walks made: int64 [e], and float32 [e], their share of a node's
AGGREGATED = "x_neighbors"  # the name of an aggregate in a batch


def aggregate_key(kind: str) -> str:
    """Name of the aggregated ``x`` of each node's neighbours in a Sample. kind: ``mean`` or ``sum``."""
    return f"{AGGREGATED}/{kind}"


def seed_key(name: str) -> str:
    """Name of an array of `BatchRequest.extras` in a Sample."""
    return f"seed/{name}"


def of_type(index: int, name: str) -> str:
    """Name of an array that belongs to the seeds of a further node type, or a further edge type, of a loader with several."""
    return f"{index}/{name}"


TARGET_ID = "edge_label_id"


def target_name(attr: str) -> str:
    """Name of an attribute of the edges to predict in a batch: ``edge_label_attr`` of ``edge_attr``."""
    return f"edge_label_{attr.removeprefix('edge_')}"


def link_key(name: str) -> str:
    """Name of an array of a batch of edges, such as ``edge_label_index``, in a Sample."""
    return f"link/{name}"


_ENDS = {"edge_label_index", "src_index", "dst_pos_index", "dst_neg_index"}


@dataclass(frozen=True)
class Sample:
    """One batch between a producer and `loader.collate`.

    Attributes:
        number: Position in the rank's epoch, from 0.
        arrays: By `node_key`, `edge_key`, `seed_key`, `link_key`, or plain names (``input_id``, ``num_sampled_nodes`` int64
            [T, H + 1], ``num_sampled_edges`` int64 [R, H]). They are views of one piece of recycled memory, which returns to its
            pool when the last of them is gone; for a batch made on a GPU, all but these numbers are torch tensors on it.
        counters: What it took to make them.

    Example:
        >>> from glt_lightning.sampling.sample import node_key
        >>> sample = Sample(0, {node_key(0, "n_id"): np.array([4, 2, 7])})
        >>> sample.arrays["node/0/n_id"]
        array([4, 2, 7])
    """

    number: int
    arrays: Mapping[str, Any]
    counters: Counters = field(default_factory=Counters)

    @property
    def num_seeds(self) -> int:
        """Seed nodes of all types, or edges to predict without their negatives."""
        return sum(len(array) for name, array in self.arrays.items() if name.split("/")[-1] == "input_id")

    @property
    def num_named(self) -> int:
        """Nodes that the seeds name, each as often as it is named: of edges both ends, with those of negatives."""
        parts = {name: name.split("/") for name in self.arrays}
        ends = [self.arrays[name] for name, of in parts.items() if "link" in of and of[-1] in _ENDS]
        return sum(math.prod(array.shape) for array in ends) if ends else self.num_seeds


@dataclass(frozen=True)
class Field:
    """One array of a draft: ``write(out)`` fills ``out``, an uninitialised array of this dtype and shape.

    value: the array, if it was made already: in the host's memory, or a tensor on a device.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    write: Callable[[np.ndarray], object]
    value: Any = None


def copied(name: str, values: np.ndarray) -> Field:
    """An array that is made already, in the host's memory."""

    def write(out: np.ndarray) -> None:
        out[...] = values

    return Field(name, values.dtype, values.shape, write, values)


@dataclass(frozen=True)
class Placed:
    """Where an array lies in the memory of its batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def view(self, memory: np.ndarray) -> np.ndarray:
        """The array in ``memory``, uint8 [>= offset + size]."""
        dtype = np.dtype(self.dtype)
        size = int(np.prod(self.shape, dtype=np.int64)) * dtype.itemsize
        return memory[self.offset : self.offset + size].view(dtype).reshape(self.shape)


class Draft:
    """A batch whose sizes are known and whose arrays are not written yet.

    Take ``nbytes`` of memory and `write` into it, which completes ``counters``. A batch that was made on a GPU is complete:
    `values` has it.

    Args:
        fields: The arrays, in the order in which they lie in memory.
        counters: What finding the nodes and edges took.

    Example:
        >>> from glt_lightning.sampling import KHopSampler
        >>> sampler = KHopSampler(LocalPartition.open("parts"), SamplerConfig(seed_type=0, fanouts=((2,),)))
        >>> draft = sampler.draft(BatchRequest(0, 99, np.array([4, 2]), np.array([0, 1])))
        >>> arrays = draft.write(np.empty(draft.nbytes, np.uint8))
        >>> arrays["node/0/n_id"]  # user ids of gids 4 and 2, and of their neighbours
        array([8, 5, 6, 7, 3, 4])
    """

    def __init__(self, fields: list[Field], counters: Counters | None = None) -> None:
        self.fields, self.counters = fields, counters or Counters()
        self.layout: list[Placed] = []
        offset = 0
        for f in fields:
            self.layout.append(Placed(f.name, f.dtype.str, f.shape, offset))
            size = int(np.prod(f.shape, dtype=np.int64)) * f.dtype.itemsize
            offset += -(-size // _ALIGN) * _ALIGN
        self.nbytes = max(offset, _ALIGN)

    def write(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """Fills ``memory``, uint8 [>= nbytes], and returns the arrays in it."""
        begin = time.perf_counter()
        arrays = {}
        for each, place in zip(self.fields, self.layout, strict=True):
            out = place.view(memory)
            each.write(out)
            arrays[each.name] = out
        self.counters.gather_s += time.perf_counter() - begin
        return arrays

    def values(self) -> dict[str, Any]:
        """The arrays where they were made, on a device; those of the host's memory in new memory."""
        if all(each.value is not None for each in self.fields):
            return {each.name: each.value for each in self.fields}
        return dict(self.write(np.empty(self.nbytes, dtype=np.uint8)))
