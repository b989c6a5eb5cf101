"""Parts of a graph that the processes of a script have in memory, as GraphLearn-for-PyTorch's `DistDataset` takes them.

Samplers read mapped files. So each process collects all parts from the others, writes them to a folder of its own, which goes
with the data set, and maps its part of it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import EDGE, NODE, DataError, OptionError, PeerError
from glt_lightning.compat.glt.distributed.calls import CallTable, from_message, to_message
from glt_lightning.compat.glt.distributed.dataset import DistDataset, by_type, ids_of_part
from glt_lightning.compat.glt.distributed.session import Membership, current
from glt_lightning.compat.glt.partitioners import PartitionerBase
from glt_lightning.partition import GraphToPartition

_OP, _FUNC = "call", "answer"
_BYTES_AT_ONCE = 16 << 20  # of a message
_Piece = dict[Any, tuple[Tensor, Tensor]]  # by type: rows [n, ...] and their ids int64 [n]


class Offer:
    """What a process answers to the others of its role. Made by all at once: a collective call. It ends with the context of the
    process. Nothing is unpickled.

    answer: called with the keywords of a question, on any thread.  working: the bytes of memory that an answer to these keywords
    takes, to be reserved before it.  about: a value of this process that JSON can represent.

    abouts: those of all processes, by rank.
    """

    def __init__(
        self, session: Membership, answer: Callable[..., Any], working: Callable[..., int], about: Any
    ) -> None:
        assert session.group is not None
        self.group, self.rank = session.group, session.group.rank
        link, host = session.link("worker"), session.own_host()
        transport = link.open_transport()
        calls = {_OP: CallTable({_FUNC: answer}, {_FUNC: working})}
        server = link.serve(f"[{host}]:0" if ":" in host else f"{host}:0", calls, transport)
        session.ends.callback(server.close)
        answers = [json.loads(text) for text in self.group.exchange(json.dumps([server.address, about]))]
        self.abouts = [each for _, each in answers]
        self._peers = [link.peer(f"worker {rank}", [address], transport) for rank, (address, _) in enumerate(answers)]
        for peer in self._peers:
            session.ends.callback(peer.close)

    def ask(self, rank: int, **question: Any) -> Any:
        """The answer of process ``rank``."""
        message = to_message({"func": _FUNC, "args": [], "kwargs": question})
        return from_message(self._peers[rank].ask(_OP, message.header, message.body).result())["value"]


class PartsOfBooks(PartitionerBase):
    """Assigns nodes as the books of a data set say. parts: int64 [N] by node type."""

    parts: Mapping[Any, Tensor]

    def assign(self, graph: GraphToPartition) -> Mapping[str, Any]:
        return {t: self.parts[t].numpy() for t in graph.num_nodes}


def collect_parts(data: DistDataset) -> None:
    """Makes a part in memory a part of a folder. A collective call of the processes with one role, except for a data set of one
    part. Raises `OptionError` where none has some part, `DataError` for parts that do not make a graph."""
    _Parts(data).load()


class _Parts:
    """The parts of all processes, by type."""

    def __init__(self, data: DistDataset) -> None:
        self._data, self._offer = data, None
        self._books = by_type(data.node_pb, NODE)
        pieces: dict[str, _Piece] = {"edges": {}, "weights": {}, "edge rows": {}, "nodes": {}}
        edge_books, edge_rows = by_type(data.edge_pb, EDGE), by_type(data.edge_features, EDGE)
        for edge_type, graph in by_type(data.graph, EDGE).items():
            sources, destinations, ids, weights = graph.topo.to_coo()
            pieces["edges"][edge_type] = torch.stack([sources, destinations], dim=1), ids
            if weights is not None:
                pieces["weights"][edge_type] = weights, ids
            if edge_type in edge_rows:
                known = ids_of_part(edge_books[edge_type], data.partition_idx) if edge_type in edge_books else ids
                pieces["edge rows"][edge_type] = edge_rows[edge_type][known], known
        for node_type, rows in by_type(data.node_features, NODE).items():
            known = ids_of_part(self._books[node_type], data.partition_idx)
            pieces["nodes"][node_type] = rows[known], known
        self._pieces = pieces
        if data.num_partitions > 1:
            session = current()
            if session is None or session.group is None:
                raise OptionError(
                    f"DistDataset: part {data.partition_idx} of {data.num_partitions} is in memory, and this process is alone. "
                    "Start a process for each part (init_worker_group or init_server), or give num_partitions=1."
                )
            counts = {of: {str(t): len(ids) for t, (_, ids) in piece.items()} for of, piece in pieces.items()}
            self._offer = Offer(session, self._answer, self._answer_bytes, [data.partition_idx, counts])

    def load(self) -> None:
        data, hetero = self._data, isinstance(self._data.graph, Mapping)
        num_nodes = {t: len(book) for t, book in self._books.items()}
        owners = self._owners()
        found = {of: self._whole(of, owners, num_nodes if of == "nodes" else {}) for of in self._pieces}

        def given(of: str) -> Any:
            return (found[of] or None) if hetero else next(iter(found[of].values()), None)

        found["edges"] = {t: rows.T.contiguous() for t, rows in found["edges"].items()}
        if self._offer is not None:
            self._offer.group.exchange("collected")  # nobody asks any more
        folder = Path(tempfile.mkdtemp(prefix="glt-parts-"))
        weakref.finalize(data, shutil.rmtree, folder, ignore_errors=True)
        partitioner = PartsOfBooks(
            folder / "parts",
            data.num_partitions,
            num_nodes if hetero else num_nodes[NODE],
            given("edges"),
            given("nodes"),
            None,
            given("edge rows"),
            None,
            edge_weights=given("weights"),
            edge_assign_strategy="by_src" if data.edge_dir == "out" else "by_dst",
        )
        partitioner.parts = {t: book[torch.arange(len(book))].long() for t, book in self._books.items()}
        partitioner.partition(progress=False)
        data.graph = data.node_features = data.edge_features = None
        data.load(folder / "parts", data.partition_idx)

    def _answer(self, of: str, kind: str, first: int) -> list[Tensor]:
        values, ids = next(pair for t, pair in self._pieces[of].items() if str(t) == kind)
        rows = slice(first, first + max(1, _BYTES_AT_ONCE // (values[:1].nbytes + 8)))
        return [values[rows], ids[rows]]

    def _answer_bytes(self, of: str, kind: str, first: int) -> int:
        """Bytes of memory that `_answer` takes when it is sent."""
        return sum(rows.nbytes for rows in self._answer(of, kind, first))  # views, until then

    def _owners(self) -> dict[int, dict[str, dict[str, int]]]:
        """Of each part the rank that is asked for it, with its numbers of rows. Empty where nobody is asked."""
        if self._offer is None:
            return {}
        by_part = {part: (rank, counts) for rank, (part, counts) in reversed([*enumerate(self._offer.abouts)])}
        if missing := sorted(set(range(self._data.num_partitions)) - by_part.keys()):
            raise OptionError(f"DistDataset: no process has part {missing[0]} of {self._data.num_partitions}.")
        return dict(by_part.values())

    def _whole(self, of: str, owners: Mapping[int, Any], num_rows: Mapping[Any, int]) -> dict[Any, Tensor]:
        """The rows of all parts in the order of their ids, by type. num_rows: as many as there have to be; of types that are not
        in it, as many as there are."""
        found = {}
        for t, (mine, ids) in self._pieces[of].items():
            counts = {rank: int(each[of].get(str(t), 0)) for rank, each in owners.items()} or {0: len(ids)}
            total = num_rows.get(t, sum(counts.values()))
            whole, seen = mine.new_empty(total, *mine.shape[1:]), torch.zeros(total, dtype=torch.int64)
            for rank, count in counts.items():
                first = 0
                while first < count:
                    values, at = self._ask(rank, of, str(t), first)
                    if not 0 < len(at) <= count - first:
                        raise PeerError(f"worker {rank}: its answer has {len(at)} {of}; expected 1 to {count - first}.")
                    first += len(at)
                    inside = (at >= 0) & (at < total)
                    whole[at[inside]] = values[inside]
                    seen += torch.bincount(at[inside], minlength=total)
            if not (seen == 1).all():
                raise DataError(
                    f"DistDataset: {of} {t}: expected each id from 0 to {total - 1} once in all parts, got "
                    f"{sum(counts.values())} rows."
                )
            found[t] = whole
        return found

    def _ask(self, rank: int, of: str, kind: str, first: int) -> list[Tensor]:
        if self._offer is None or rank == self._offer.rank:
            return self._answer(of, kind, first)
        found: list[Tensor] = self._offer.ask(rank, of=of, kind=kind, first=first)
        return found
