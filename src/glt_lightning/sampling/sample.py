"""A batch as named arrays, and the draft of a batch that has no memory yet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from glt_lightning.base import AGGREGATES
from glt_lightning.sampling.counters import Counters
from glt_lightning.sampling.request import BatchRequest

_ALIGN = 64


def node_key(node_type: int, name: str) -> str:
    """Returns the name of a node array in a Sample."""
    return f"node/{node_type}/{name}"


def edge_key(edge_type: int, name: str) -> str:
    """Returns the name of an edge array in a Sample."""
    return f"edge/{edge_type}/{name}"


# Arrays of the edges of a type, int64, written by `kernels.build.column_pointers` and `kernels.build.by_source`. Names of
# attributes have no slash, so none can clash with these.
COLUMN_POINTERS, BY_SOURCE = "edge_index/colptr", "edge_index/by_source"
ROW = "n_id/row"  # int64 [n]: the number of each node in its type
FLIPPED = "edge_index/is_flipped"  # bool [e]
VISITS, EDGE_WEIGHT = (
    "visits",
    "edge_weight",
)  # of edges that walks found: int64 [e], and float32 [e], their share of the visits of the destination node


def aggregate_key(kind: str) -> str:
    """Returns the name of the aggregated ``x`` of each node's neighbours in a Sample. kind: ``mean`` or ``sum``."""
    return f"{Sample.AGGREGATED}/{kind}"


def seed_key(name: str) -> str:
    """Returns the name of an array of `BatchRequest.extras` in a Sample."""
    return f"seed/{name}"


def link_key(name: str) -> str:
    """Returns the name of an array of a batch of edges, such as ``edge_label_index``, in a Sample."""
    return f"link/{name}"


_ENDS = {"edge_label_index", "src_index", "dst_pos_index", "dst_neg_index", "src_neg_index"}


@dataclass(frozen=True)
class Sample:
    """One batch between a producer and `loader.collate`.

    Attributes:
        number: Position in the rank's epoch, from 0.
        arrays: By `node_key`, `edge_key`, `seed_key`, `link_key`, or plain names (``input_id``, ``num_sampled_nodes`` int64
            [T, H + 1], ``num_sampled_edges`` int64 [R, H]). They are views of one piece of recycled memory, which returns to its
            pool when the last of them is gone; for a batch made on a GPU, all but these numbers are torch tensors on it.
        counters: Where the rows came from, and the time that they took.

    Example:
        >>> sample = Sample(0, {"node/0/n_id": np.array([4, 2, 7])})
        >>> sample.node(0, "n_id")
        array([4, 2, 7])
    """

    TREE_OF: ClassVar[str] = "batch"  # int64 [n]: the example whose tree each node of a disjoint batch is in
    AGGREGATED: ClassVar[str] = "x_neighbors"  # the name of an aggregate in a batch
    # Fields of batches beside attributes, and the names of their arrays among those of a type of nodes or edges.
    NODE_FIELDS: ClassVar[Mapping[str, str]] = MappingProxyType({"n_id": "n_id", "row": ROW})
    EDGE_FIELDS: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"e_id": "e_id", "is_flipped": FLIPPED, VISITS: VISITS, EDGE_WEIGHT: EDGE_WEIGHT}
    )

    number: int
    arrays: Mapping[str, Any]
    counters: Counters = field(default_factory=Counters)

    def node(self, node_type: int, name: str) -> Any:
        """Returns an array of the nodes of a type; None if there is none of this name."""
        return self.arrays.get(node_key(node_type, name))

    def edge(self, edge_type: int, name: str) -> Any:
        """Returns an array of the edges of a type; None if there is none of this name."""
        return self.arrays.get(edge_key(edge_type, name))

    def pointers(self, edge_type: int) -> tuple[Any, Any]:
        """Returns the column pointers of the edges of a type, and their order by source; None for what is not there."""
        return self.edge(edge_type, COLUMN_POINTERS), self.edge(edge_type, BY_SOURCE)

    @property
    def aggregate(self) -> tuple[str, Any] | None:
        """The kind of the aggregate of the neighbours' ``x``, and its rows; None if there is none."""
        found = ((kind, self.arrays.get(aggregate_key(kind))) for kind in AGGREGATES)
        return next(((kind, rows) for kind, rows in found if rows is not None), None)

    def input_ids(self, of_type: int | None = None) -> Any:
        """Returns the positions of the seeds in the loader's. of_type: a further type of seeds; None: the first."""
        return self.arrays["input_id" if of_type is None else seed_key(BatchRequest.of_type(of_type, "input_id"))]

    def seed_fields(self) -> Iterator[tuple[int | None, str, Any]]:
        """Yields the arrays of `BatchRequest.extras`: a further type of the seeds, or None for the first; name; values."""
        return self._fields(seed_key(""))

    def link_fields(self) -> Iterator[tuple[int | None, str, Any]]:
        """Yields the arrays of a batch of edges, as `seed_fields` does."""
        return self._fields(link_key(""))

    def _fields(self, prefix: str) -> Iterator[tuple[int | None, str, Any]]:
        for key, values in self.arrays.items():
            if key.startswith(prefix):
                of_type, _, name = key.removeprefix(prefix).rpartition("/")
                yield int(of_type) if of_type else None, name, values

    @property
    def num_seeds(self) -> int:
        """Number of seed nodes of all types, or of edges to predict without their negatives."""
        return sum(len(array) for name, array in self.arrays.items() if f"/{name}".endswith("/input_id"))

    @property
    def num_named(self) -> int:
        """Number of nodes in the seeds, each counted as often as it occurs: for edges both ends, also those of negatives."""
        linked = ((array, name.split("/")) for name, array in self.arrays.items() if "link" in name)
        ends = [array for array, of in linked if "link" in of and of[-1] in _ENDS]
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
    """Makes the field of an array that exists already, in the host's memory."""

    def write(out: np.ndarray) -> None:
        out[...] = values

    return Field(name, values.dtype, values.shape, write, values)


@dataclass(frozen=True)
class Placed:
    """The place of an array in the memory of its batch. dtype: as numpy spells it.  offset: bytes from the beginning."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def view(self, memory: np.ndarray) -> np.ndarray:
        """Views the array in ``memory``, uint8 [>= offset + size]."""
        return np.ndarray(self.shape, self.dtype, memory, self.offset)


class Draft:
    """A batch whose sizes are known and whose arrays are not written yet.

    Take ``nbytes`` of memory and `write` into it, which completes ``counters``. A batch that was made on a GPU is complete
    already: `values` returns it.

    Args:
        fields: The arrays, in the order in which they lie in memory.
        counters: The counters of the nodes and edges so far.

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
        self._offsets: list[int] = []
        offset = 0
        for f in fields:
            self._offsets.append(offset)
            size = math.prod(f.shape) * f.dtype.itemsize
            offset += -(-size // _ALIGN) * _ALIGN
        self.nbytes = max(offset, _ALIGN)

    @property
    def layout(self) -> list[Placed]:
        """The places of the arrays, for another process."""
        return [Placed(f.name, f.dtype.str, f.shape, offset) for f, offset in self._each()]

    def _each(self) -> Iterator[tuple[Field, int]]:
        return zip(self.fields, self._offsets, strict=True)

    def write(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """Fills ``memory``, uint8 [>= nbytes], and returns the arrays in it."""
        begin = time.perf_counter()
        arrays = {}
        for each, offset in self._each():
            out: np.ndarray = np.ndarray(each.shape, each.dtype, memory, offset)
            each.write(out)
            arrays[each.name] = out
        self.counters.gather_s += time.perf_counter() - begin
        return arrays

    def values(self) -> dict[str, Any]:
        """Returns the arrays of a device where they were made; writes those of the host into new memory."""
        if all(each.value is not None for each in self.fields):
            return {each.name: each.value for each in self.fields}
        return dict(self.write(np.empty(self.nbytes, dtype=np.uint8)))
