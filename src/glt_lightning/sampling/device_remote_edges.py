"""Further edges of a batch in remote rows: their owners find them, while the GPU finds the edges of its own rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError
from glt_lightning.kernels import Among, Between, GraphView, Kernels, LidEdges, Picks, RemoteParts
from glt_lightning.sampling.questions.induce import Induce
from glt_lightning.sampling.source import EdgeOwners
from glt_lightning.sampling.table import RowTable

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class WantedEdges:
    """Edges of a batch that are looked for. keys: int64 [M], the keys of the sources in ``between.known``, with lid = position.
    sources: int64 [M], their gids."""

    between: Between
    keys: Tensor
    sources: Tensor


@dataclass(frozen=True)
class _Question:
    """A question to owners. among: the question, with distinct rows.  rows: int64 [n] on the device, the positions of remote
    rows among all.  number: int64 [n], the position of each in ``among.rows``."""

    among: Among
    rows: Tensor
    number: np.ndarray


class RemoteEdges:
    """Finds further edges of one batch if some parts of the graph are remote.

    parts: the remote parts.  owners: their owners.  tables: the tables of the batch's edges, by edge type, which have the
    edge rows of remote edges.  view: the mapped parts.
    """

    def __init__(
        self,
        parts: RemoteParts,
        owners: EdgeOwners,
        tables: Sequence[RowTable],
        view: GraphView,
        kernels: Kernels,
        require_room: Callable[[int], None],
    ) -> None:
        self._parts, self._owners, self._tables, self._view = parts, owners, tables, view
        self._kernels, self._require_room = kernels, require_room

    def between(self, asked: Sequence[WantedEdges], *, weighted: bool) -> list[LidEdges]:
        """Finds edges as `LidEdges.between` does, with edge rows of the whole graph. Asks owners once for
        each entry that has remote rows, and meanwhile the device reads its own. weighted: leave out edges of weight 0."""
        own, remote = self._split([each.between for each in asked])
        questions = self._questions(asked, remote)
        weights = self._owners.config.weights if weighted else ()
        answers = [self._owners.ask(Induce(each.among, weights)) for each in questions.values()]
        mine = [_of_rows(each.between, rows) for each, rows in zip(asked, own, strict=True)]
        found = LidEdges.between(mine, require_room=self._require_room)
        for (i, question), answer in zip(questions.items(), answers, strict=True):
            here = LidEdges(torch.stack([found[i].ends[0], own[i][found[i].ends[1]]]), found[i].edge_row)
            both = LidEdges.joined([here, self._placed(asked[i], question, answer())])
            found[i] = both.where(torch.argsort(both.ends[1], stable=True))  # each row has its edges in one of the two
        return found

    def _split(self, asked: Sequence[Between]) -> tuple[list[Tensor], list[Tensor]]:
        """Returns for each entry the positions of the local rows, and those of the remote rows. Waits for their numbers."""
        kinds = [self._parts.splits[int(self._view.dst_types[each.edge_type])] for each in asked]
        orders, numbers = [], [self._kernels.empty(0)]
        for split, each in zip(kinds, asked, strict=True):
            order, number = split(each.rows, len(each.rows))
            orders.append(order)
            numbers.append(number)
        counts = self._kernels.read(*numbers)
        own = [order[n:] for order, n in zip(orders, counts, strict=True)]
        return own, [order[:n] for order, n in zip(orders, counts, strict=True)]

    def _questions(self, asked: Sequence[WantedEdges], remote: Sequence[Tensor]) -> dict[int, _Question]:
        """Makes the questions of the entries that have remote rows, by number of the entry. Waits for the device."""
        some = [i for i, rows in enumerate(remote) if len(rows) and len(asked[i].sources)]
        lists = [ids for i in some for ids in (asked[i].between.rows[remote[i]], torch.unique(asked[i].sources))]
        ids = self._kernels.fetch(torch.cat([self._kernels.empty(0), *lists]))
        on_host = iter(np.split(ids, np.cumsum([len(each) for each in lists])))
        found = {}
        for i in some:
            rows, number = np.unique(next(on_host), return_inverse=True)
            each = asked[i].between
            among = Among.of(self._view, each.edge_type, rows, next(on_host), each.limit)
            found[i] = _Question(among, remote[i], number)
        return found

    def _placed(self, wanted: WantedEdges, question: _Question, picks: Picks) -> LidEdges:
        """Copies an answer to the device, without the entries whose source is not in the batch, or not in the tree of the row."""
        edge_type, rows, put = question.among.edge_type, picks.edge_rows, self._kernels.put
        assert rows is not None
        if len(rows) and not 0 <= rows.min() <= rows.max() < self._parts.edge_ends[edge_type]:
            raise DataError(f"induce: an owner found edges of edge type {edge_type} that the graph does not have.")
        counts = picks.counts.astype(np.int64)
        many = counts[question.number]  # of each remote row
        total = int(many.sum())
        self._require_room(total * LidEdges.ENTRY_BYTES)
        shift = (np.cumsum(counts) - counts)[question.number] - (np.cumsum(many) - many)
        number = torch.repeat_interleave(put(many), output_size=total)
        entry = torch.arange(total, device=number.device) + put(shift)[number]
        row = question.rows[number]
        keys = put(question.among.members)[put(picks.neighbors).to(torch.int64)[entry]]
        if wanted.between.bases is not None:
            keys = keys + wanted.between.bases[row]
        known, lids = torch.sort(wanted.keys, stable=True)  # stable: of a seed that comes twice the first is found
        place = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
        kept = known[place] == keys
        return LidEdges(torch.stack([lids[place], row])[:, kept], put(rows).to(torch.int64)[entry][kept])

    def rows_of(self, edge_type: int, numbers: Tensor) -> Tensor:
        """Returns the edge rows of sampled edges. numbers: int64, as in `kernels.cuda.subgraph.DeviceSubgraph`: edge rows of
        local edges, and numbers behind these for remote edges."""
        end, routed = self._parts.edge_ends[edge_type], np.concatenate([_NONE, *self._tables[edge_type].routed])
        if not len(routed):
            return numbers
        rows = self._kernels.put(routed)[(numbers - end).clamp(0, len(routed) - 1)]
        return torch.where(numbers < end, numbers, rows)

    def numbered(self, edges: Sequence[Tensor]) -> list[Tensor]:
        """Numbers new edges, the inverse of `rows_of`: remote edges get the next numbers, and their attributes are requested of
        owners. edges: edge rows by edge type. Waits for the device."""
        splits = [split(rows, len(rows)) for split, rows in zip(self._parts.edge_splits, edges, strict=True)]
        counts = self._kernels.read(*(number for _, number in splits))
        remote = [order[:n] for (order, _), n in zip(splits, counts, strict=True)]
        asked = torch.cat([rows[places] for rows, places in zip(edges, remote, strict=True)])
        on_host = self._kernels.fetch(asked)
        first = [
            end + sum(map(len, table.routed)) for end, table in zip(self._parts.edge_ends, self._tables, strict=True)
        ]
        self._owners.reached_edges(dict(enumerate(np.split(on_host, np.cumsum(counts)[:-1]))))
        return [
            rows.index_copy(0, places, torch.arange(begin, begin + n, device=rows.device))
            for rows, places, begin, n in zip(edges, remote, first, counts, strict=True)
        ]


def _of_rows(asked: Between, rows: Tensor) -> Between:
    return replace(asked, rows=asked.rows[rows], bases=None if asked.bases is None else asked.bases[rows])
