"""Ready transforms of batches, for ``data.batches.transform``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import ClassSpec, DataError, OptionError
from glt_lightning.loader.collate import Batch
from glt_lightning.loader.edge_index import plain

_FAR = 1 << 20  # of a node that is not reached


class DRNL:
    """Labels the nodes around each pair by their distances to its two ends, as SEAL does (Zhang and Chen, 2018): double-radius
    node labelling.

    For batches of edges in a graph with one node type, ``disjoint`` with ``tree: example`` and usually ``subgraph_type:
    induced``. A node at the distances a and b, each without passing the other end, gets 1 + min(a, b) + h (h + r - 1), with h, r
    = divmod(a + b, 2); the ends 1, and a node that reaches only one of them 0. Edges count in both directions.

    Args:
        max_z: Labels above it become it.
        to: ``z``: batches have the labels, int64 [N].  ``x``: they are appended to ``x`` as ``max_z + 1`` columns of 0 and 1, or
            make it up where nodes have none.

    Raises:
        OptionError: For other arguments.
        DataError: For a batch without trees of both ends.

    Example:
        >>> edges = np.array([[0, 3], [1, 4]])
        >>> spec = LinkSpec(
        ...     name="seal", edge_label_index=edges, num_neighbors=[-1], batch_size=2, disjoint=True, tree="example",
        ...     subgraph_type="induced", transform=DRNL(),
        ... )
        >>> with Session("parts") as session:
        ...     batch = next(iter(session.make_loader(spec)))
        >>> batch.z[batch.edge_label_index]
        tensor([[1, 1],
                [1, 1]])
    """

    def __init__(self, max_z: int = 20, to: str = "z") -> None:
        if isinstance(max_z, bool) or not isinstance(max_z, int) or max_z < 1:
            raise OptionError(f"DRNL: max_z: expected an integer >= 1, got {max_z!r:.80}.")
        if to not in ("x", "z"):
            raise OptionError(f"DRNL: to: expected x or z, got {to!r:.80}.")
        self.max_z, self.to = max_z, to

    @property
    def added_features(self) -> int:
        """Columns that it appends to ``x``, for `GLTDataModule.num_features`."""
        return self.max_z + 1 if self.to == "x" else 0

    def __call__(self, batch: Any) -> Any:
        if "edge_label_index" not in batch or "batch" not in batch:
            raise DataError(
                "DRNL labels batches of edges in which the two ends of a pair are in one tree, in a graph with one node type. "
                "Set task: link, disjoint: true and tree: example."
            )
        ends, tree = batch.edge_label_index, batch.batch
        column = torch.arange(ends.size(1), device=ends.device)
        if not torch.equal(tree[ends], torch.stack([column, column])):
            raise DataError("DRNL: the two ends of a pair are in different trees. Set tree: example.")
        z = drnl(plain(batch.edge_index), ends, len(tree)).clamp(max=self.max_z)
        if self.to == "z":
            batch.z = z
            return batch
        labels = torch.nn.functional.one_hot(z, self.max_z + 1).to(torch.float32)
        x = batch.get("x")
        batch.x = labels if x is None else torch.cat([x.to(labels.dtype), labels], dim=1)
        return batch


def drnl(edge_index: Tensor, ends: Tensor, num_nodes: int) -> Tensor:
    """int64 [N]: the labels. edge_index: int64 [2, E].  ends: int64 [2, K], the two ends of each pair, in parts of the graph that
    have no common edge."""
    both = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    to_first, to_second = (_distances(both, ends[i], ends[1 - i], num_nodes) for i in (0, 1))
    reached = (to_first < _FAR) & (to_second < _FAR)
    total = to_first + to_second
    half = total // 2
    z = torch.where(reached, 1 + torch.minimum(to_first, to_second) + half * (half + total % 2 - 1), 0)
    z[ends.flatten()] = 1
    return z


def _distances(edges: Tensor, begin: Tensor, without: Tensor, num_nodes: int) -> Tensor:
    """int64 [N]: edges on the shortest way from ``begin`` without the nodes ``without``."""
    gone = torch.zeros(num_nodes, dtype=torch.bool, device=edges.device)
    gone[without] = True
    gone[begin] = False  # a pair of one node
    src, dst = edges[:, ~(gone[edges[0]] | gone[edges[1]])]
    found = torch.full((num_nodes,), _FAR, dtype=torch.int64, device=edges.device)
    found[begin] = 0
    for distance in range(1, num_nodes):
        new = dst[(found[src] == distance - 1) & (found[dst] == _FAR)]
        if not len(new):
            break
        found[new] = distance
    return found


class PyGBidirectional:
    """Gives batches the edges of PyG's ``subgraph_type="bidirectional"``: those that were sampled and a flipped copy of each,
    copies of one edge merged, in the order of destinations and sources.

    For batches of ``subgraph_type: directional``. A merged edge has the lowest of its ``e_id``, with its attributes, and a
    flipped one those of the edge that it is a copy of. With several edge types it is merged with the flipped edges of the type
    of the other direction (``rev_...``, or the same type between nodes of one), and batches have no ``e_id`` and attributes of
    edges. ``num_sampled_nodes`` and ``num_sampled_edges`` are gone.

    ``subgraph_type: bidirectional`` gives the stored edges of the other direction instead, with their own ids and attributes.

    Raises:
        DataError: For a batch with induced or bidirectional edges.

    Example:
        >>> spec = LoaderSpec(name="own", split="train", num_neighbors=[2], batch_size=2, transform=PyGBidirectional())
        >>> with Session("parts") as session:
        ...     edges = next(iter(session.make_loader(spec))).edge_index
        >>> {*zip(*edges.tolist())} == {*zip(*edges.flip(0).tolist())}
        True
    """

    def __call__(self, batch: Any) -> Any:
        stores = batch.edge_stores
        if any("is_flipped" in store or "num_sampled_edges" not in store for store in stores):
            raise DataError(
                "PyGBidirectional: expected sampled edges, and got those of another subgraph_type. Set subgraph_type: "
                "directional."
            )
        sampled = {store._key: plain(store.edge_index) for store in stores}
        for store in stores:
            self._complete(batch, store, sampled)
        for store in (*batch.node_stores, *stores):
            for name in ("num_sampled_nodes", "num_sampled_edges"):
                store.pop(name, None)
        return batch

    def _complete(self, batch: Any, store: Any, sampled: dict[Any, Tensor]) -> None:
        key, several = store._key, store._key is not None
        other = _reverse_type(key, sampled) if several else None
        if other not in sampled:
            return
        edges = sampled[key]
        both = torch.cat([edges, sampled[other].flip(0)], dim=1)
        number, ids = edges.size(1), store.get("e_id")
        rank = torch.arange(both.size(1), device=both.device) if several or ids is None else torch.cat([ids, ids])
        order = torch.argsort(rank, stable=True)
        sources = batch.num_nodes if not several else batch[key[0]].num_nodes
        place = both[1] * max(1, sources) + both[0]
        order = order[torch.argsort(place[order], stable=True)]
        first = torch.ones(len(order), dtype=torch.bool, device=both.device)
        first[1:] = place[order][1:] != place[order][:-1]
        kept = order[first]
        for name in [n for n, v in store.items() if n == "e_id" or (n != "edge_index" and store.is_edge_attr(n))]:
            if several:
                del store[name]
            else:
                store[name] = store[name][kept % max(1, number)]
        store.edge_index = both[:, kept]


def _reverse_type(key: tuple[str, str, str], known: dict[Any, Tensor]) -> tuple[str, str, str]:
    src, relation, dst = key
    names = (f"rev_{relation}", relation.removeprefix("rev_"))
    likely = [(dst, name, src) for name in names if name != relation]
    return next((each for each in likely if each in known), (dst, relation, src))


# The user's own function over every batch of a loader.


@dataclass(frozen=True)
class BatchTransform:
    """A function from batch to batch. name: for errors."""

    name: str
    function: Callable[[Batch], Batch]

    @classmethod
    def of(cls, option: str, given: Any) -> BatchTransform | None:
        """given: a callable; the import path of a class or function; ``{class_path, init_args}``; or None. Raises `OptionError`,
        or `DataError` for what cannot be imported or made."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, (str, Mapping, Namespace)):
            spec = ClassSpec.parse(option, given)
            return cls(spec.text, spec.make())
        if callable(given):
            return cls(getattr(given, "__qualname__", None) or type(given).__qualname__, given)
        raise OptionError(
            f"{option}: expected one transform of batches: a class path, the path of a function, {{class_path, init_args}} or a "
            f"callable; got {given!r:.200}. The list of what changes the graph before it is partitioned is data.transforms."
        )

    @property
    def added_features(self) -> int:
        """Columns that it appends to ``x``: what the function says by an attribute of this name."""
        return int(getattr(self.function, "added_features", 0))

    def __call__(self, batch: Batch, loader: str, number: int) -> Batch:
        """The batch to use in its place. Raises `DataError` that names the transform and the batch where it fails."""
        where = f"loader {loader!r}: transform {self.name}:"
        try:
            out = self.function(batch)
        except Exception as error:  # the user's code may raise anything
            raise DataError(f"{where} failed on batch {number} ({type(error).__name__}: {error}).") from error
        if not isinstance(out, Batch):
            raise DataError(
                f"{where} returned {type(out).__name__} for batch {number}; expected a Data or HeteroData. Return the batch that "
                "was given, changed, or a new one."
            )
        return out
