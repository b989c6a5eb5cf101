"""GraphLearn-for-PyTorch's `DistRandomPartitioner`: every worker has a piece of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import DataError, OptionError, PeerError
from glt_lightning.compat.glt.distributed.offer import Offer
from glt_lightning.compat.glt.distributed.options import CollocatedDistSamplingWorkerOptions
from glt_lightning.compat.glt.distributed.session import current, required
from glt_lightning.compat.glt.distributed.worker import init_worker_group
from glt_lightning.compat.glt.partitioners import RandomPartitioner
from glt_lightning.graph import Manifest
from glt_lightning.partition import FLOATS

_HOMOGENEOUS = ""  # the type of a graph without types


class DistRandomPartitioner:
    """Partitions a graph of which every worker has a piece, at random. `partition` is a collective call.

    Each worker collects the whole graph in its memory; so each can write a folder of its own, and into one that they share the
    first writes. A graph that is larger than memory is for `glt_lightning.partition.partition_parts`.

    Dictionaries by type for a heterogeneous graph, else one of each:

    Args:
        output_dir: The folder.
        num_nodes: Of the whole graph.
        edge_index, edge_ids: Edges of this piece [2, e], by the ids of nodes, and their columns in the whole graph [e].
        node_feat, node_feat_ids: Rows of this piece [n, D], and their nodes [n].
        edge_feat, edge_feat_ids: Likewise by the columns of edges.
        num_parts, current_partition_idx: Number of workers, each of which has a part, and which this is, where
            `init_worker_group` has not said it.
        chunk_size: Rows of one message.
        master_addr, master_port: Where the workers meet.
        num_rpc_threads, device: No effect.
        node_feat_dtype, edge_feat_dtype, edge_assign_strategy: As of `RandomPartitioner`.

    Example:
        >>> edges = torch.stack([torch.arange(10), (torch.arange(10) + 1) % 10])
        >>> partitioner = glt.distributed.DistRandomPartitioner(
        ...     "of_pieces", 10, edges, torch.arange(10), num_parts=1, current_partition_idx=0
        ... )
        >>> partitioner.partition().num_edges
        (10,)
        >>> glt.distributed.shutdown_rpc()
    """

    def __init__(
        self,
        output_dir: str | Path,
        num_nodes: Any,
        edge_index: Any,
        edge_ids: Any,
        node_feat: Any = None,
        node_feat_ids: Any = None,
        edge_feat: Any = None,
        edge_feat_ids: Any = None,
        num_parts: int | None = None,
        current_partition_idx: int | None = None,
        node_feat_dtype: Any = FLOATS,
        edge_feat_dtype: Any = FLOATS,
        edge_assign_strategy: str = "by_src",
        chunk_size: int = 10000,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        num_rpc_threads: int = 16,
        device: Any = None,
    ) -> None:
        if (session := current()) is None:
            if num_parts is None or current_partition_idx is None:
                raise OptionError(
                    "DistRandomPartitioner: give num_parts and current_partition_idx, or call init_worker_group first."
                )
            init_worker_group(num_parts, current_partition_idx)
            session = required("DistRandomPartitioner")
        world = session.context.world_size
        if num_parts not in (None, world):
            raise OptionError(f"num_parts: {num_parts} for {world} workers; each writes one.")
        self._output_dir, self._num_nodes, self._chunk_size = Path(output_dir), num_nodes, chunk_size
        self._strategy, self._dtypes, self._parts = edge_assign_strategy, (node_feat_dtype, edge_feat_dtype), world
        self._pieces = {
            "nodes": _pairs("node_feat", node_feat, node_feat_ids),
            "edges": _pairs("edge_index", _rows_of_edges(edge_index), edge_ids),
            "edge rows": _pairs("edge_feat", edge_feat, edge_feat_ids),
        }
        self._address = CollocatedDistSamplingWorkerOptions(master_addr, master_port)

    def partition(self) -> Manifest:
        """Writes ``output_dir`` and returns its manifest. Raises `DataError` for pieces that do not make a graph."""
        session = required("DistRandomPartitioner")
        offer = None
        if self._parts > 1:
            if session.group is None:
                session.join_workers(*self._address.address())
            counts = {of: {str(t): len(ids) for t, (_, ids) in piece.items()} for of, piece in self._pieces.items()}
            offer = Offer("DistRandomPartitioner", self._answer, self._answer_bytes, counts)
        nodes = self._whole("nodes", offer, self._num_nodes)
        edges = {t: rows.T.contiguous() for t, rows in self._whole("edges", offer).items()}
        partitioner = RandomPartitioner(
            self._output_dir,
            self._parts,
            self._num_nodes,
            _given(edges),
            _given(nodes),
            self._dtypes[0],
            _given(self._whole("edge rows", offer)),
            self._dtypes[1],
            edge_assign_strategy=self._strategy,
        )
        if offer is not None:
            offer.group.exchange("collected")  # nobody asks any more
        return partitioner.partition()

    def _answer(self, of: str, kind: str, first: int, end: int) -> list[Tensor]:
        values, ids = next(pair for t, pair in self._pieces[of].items() if str(t) == kind)
        rows = slice(first, min(end, first + self._chunk_size))
        return [values[rows], ids[rows]]

    def _answer_bytes(self, of: str, kind: str, first: int, end: int) -> int:
        """Bytes of memory that `_answer` takes when it is sent."""
        return sum(rows.nbytes for rows in self._answer(of, kind, first, end))  # views, until then

    def _whole(self, of: str, offer: Offer | None, num_nodes: Any = None) -> dict[Any, Tensor]:
        """The rows of all workers in the order of their ids, by type."""
        found = {}
        for t, (mine, ids) in self._pieces[of].items():
            counts = [len(ids)] if offer is None else [int(each[of].get(str(t), 0)) for each in offer.abouts]
            total = sum(counts) if num_nodes is None else num_nodes[t] if t != _HOMOGENEOUS else num_nodes
            whole, seen = mine.new_empty(total, *mine.shape[1:]), torch.zeros(total, dtype=torch.int64)
            for rank, count in enumerate(counts):
                first = 0
                while first < count:
                    values, at = self._ask(offer, rank, of, str(t), first)
                    if not 0 < len(at) <= count - first:
                        raise PeerError(f"worker {rank}: its answer has {len(at)} {of}; expected 1 to {count - first}.")
                    first += len(at)  # it may have another chunk_size
                    inside = (at >= 0) & (at < total)
                    whole[at[inside]] = values[inside]
                    seen += torch.bincount(at[inside], minlength=total)
            if sum(counts) != total or not (seen == 1).all():
                raise DataError(
                    f"DistRandomPartitioner: {of} {t}: expected each id from 0 to {total - 1} once in all pieces, got "
                    f"{sum(counts)} rows."
                )
            found[t] = whole
        return found

    def _ask(self, offer: Offer | None, rank: int, of: str, kind: str, first: int) -> list[Tensor]:
        end = first + self._chunk_size
        if offer is None or rank == offer.rank:
            return self._answer(of, kind, first, end)
        found: list[Tensor] = offer.ask(rank, of=of, kind=kind, first=first, end=end).wait()
        return found


def _pairs(name: str, values: Any, ids: Any) -> dict[Any, tuple[Tensor, Tensor]]:
    """(rows, ids) by type. Raises `DataError` where they differ in length."""
    if values is None:
        return {}
    by_type = values if isinstance(values, Mapping) else {_HOMOGENEOUS: values}
    found = {}
    for t, rows in by_type.items():
        own = ids[t] if isinstance(ids, Mapping) else ids
        if own is None or len(own) != len(rows):
            raise DataError(f"{name}: {len(rows)} rows need as many ids, got {0 if own is None else len(own)}.")
        found[t] = torch.as_tensor(rows), torch.as_tensor(own).long()
    return found


def _rows_of_edges(edge_index: Any) -> Any:
    if isinstance(edge_index, Mapping):
        return {t: _rows_of_edges(each) for t, each in edge_index.items()}
    return torch.as_tensor(edge_index).T


def _given(found: Mapping[Any, Tensor]) -> Any:
    return found.get(_HOMOGENEOUS, found or None)
