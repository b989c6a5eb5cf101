"""Random walks on a CUDA device, and the nodes that they visit most: the twin of `kernels.walks`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glt_lightning.kernels.cuda.graph import DeviceGraph
from glt_lightning.kernels.cuda.merge import Piece
from glt_lightning.kernels.cuda.stream import Kernels
from glt_lightning.kernels.cuda.subgraph import DeviceExcluded
from glt_lightning.kernels.walks import RuleStruct, WalkRule, Walks


@dataclass(frozen=True)
class Visited:
    """The nodes that walks from some roots visit most: ids, visits, int64 [n, K], of which the first ``counts``, int64 [n], of
    each row are valid."""

    ids: Tensor
    visits: Tensor
    counts: Tensor

    @classmethod
    def joined(cls, pieces: Sequence[Visited]) -> Visited:
        """Joins the visits of all roots, piece after piece."""
        columns = zip(*((p.ids, p.visits, p.counts) for p in pieces), strict=True)
        return cls(*map(torch.cat, columns)) if len(pieces) > 1 else pieces[0]

    def piece(self, rows: Tensor | None) -> Piece:
        """Converts the visits to picks of a frontier, with the numbers of visits in place of edge rows. rows: positions of the
        roots in the frontier; None: all its nodes are roots. Does not wait."""
        n, most = self.ids.shape
        offsets = self.counts.new_zeros(n + 1)
        torch.cumsum(self.counts, 0, out=offsets[1:])
        place = torch.arange(most, device=offsets.device)
        to = torch.where(place < self.counts[:, None], offsets[:-1, None] + place, n * most).reshape(-1)
        row = torch.arange(n, device=offsets.device)[:, None].expand(n, most)
        # one entry more, to which the places without an id are written
        columns = [offsets.new_zeros(n * most + 1) for _ in range(3)]
        for column, values in zip(columns, (self.ids, row, self.visits), strict=True):
            column.index_copy_(0, to, values.reshape(-1))
        neighbors, numbers, visits = (column[:-1] for column in columns)
        return Piece(rows, self.counts, neighbors, numbers, visits, offsets)


class DeviceWalks:
    """The twin of `kernels.walks.Walks` in a device's memory.

    Attributes:
        roots, at, streams: int64 [n], as in `Walks`; the streams by their bits.  step: int32 [n].  trace: int64 [n, length].
    """

    def __init__(
        self, rule: WalkRule, roots: Tensor, streams: Tensor, at: Tensor, step: Tensor, trace: Tensor, kernels: Kernels
    ) -> None:
        self.rule, self.roots, self.streams, self.at, self.step = rule, roots, streams, at, step
        self.trace, self._kernels = trace, kernels
        self._edge_types = kernels.put(np.array(rule.edge_types, dtype=np.int32))

    @classmethod
    def begin(
        cls, rule: WalkRule, roots: Tensor, uids: Tensor, walks: int, key: int, trees: Tensor | None, kernels: Kernels
    ) -> DeviceWalks:
        """Begins ``walks`` walks at each root, as `kernels.walks.Walks.begin`. roots, uids: int64 [n].  trees: int32 [n]."""
        streams = kernels.empty(len(uids) * walks)
        kernels.run("glt_cuda_walk_streams", uids, trees, len(uids), walks, key, streams)
        roots = roots.repeat_interleave(walks)
        trace = kernels.empty(len(roots), rule.length).fill_(-1)
        step = kernels.empty(len(roots), dtype=torch.int32).fill_(0)
        return cls(rule, roots, streams, roots.clone(), step, trace, kernels)

    @classmethod
    def put(cls, walks: Walks, kernels: Kernels) -> DeviceWalks:
        """Copies walks from the host's memory to the device."""
        streams = walks.streams.view(np.int64)
        roots, bits, at, step, trace = (
            kernels.put(each) for each in (walks.roots, streams, walks.at, walks.step, walks.trace)
        )
        return cls(walks.rule, roots, bits, at, step, trace, kernels)

    @classmethod
    def joined(cls, pieces: Sequence[DeviceWalks]) -> DeviceWalks:
        """Joins walks, which have the same rule."""
        if len(pieces) == 1:
            return pieces[0]
        each = zip(*((p.roots, p.streams, p.at, p.step, p.trace) for p in pieces), strict=True)
        roots, streams, at, step, trace = map(torch.cat, each)
        return cls(pieces[0].rule, roots, streams, at, step, trace, pieces[0]._kernels)

    def __len__(self) -> int:
        return len(self.roots)

    def advance(self, graph: DeviceGraph, error: Tensor, excluded: DeviceExcluded | None = None) -> None:
        """Takes all walks further, until they end or stand at a node whose row the device does not have; a walk that restarts
        there stands at its root. error: int64 [5], receives the errors of `kernels.walks.Walks.advance`.  excluded: as there."""
        rule = self.rule
        struct = RuleStruct(self._edge_types.data_ptr(), len(rule.edge_types), rule.length, rule.restart, rule.ends)
        without = None if excluded is None else excluded.table
        arguments = (without, self.roots, self.streams, len(self), self.at, self.step, self.trace, error)
        self._kernels.run("glt_cuda_walk", graph.address, ctypes.addressof(struct), *arguments)

    def under_way(self) -> Tensor:
        """Returns int64 [m]: the walks that have steps to take. Waits for the device."""
        return torch.nonzero(self.step < self.rule.length).reshape(-1)

    def on_host(self, which: Tensor) -> Walks:
        """Copies the state of some walks to the host, with an empty trace for their next steps. Waits for the device."""
        states = [
            each.index_select(0, which) for each in (self.roots, self.streams, self.at, self.step.to(torch.int64))
        ]
        roots, bits, at, step = self._kernels.fetch(torch.cat(states)).reshape(4, -1)
        return Walks(self.rule, roots, bits.view(np.uint64), at, step.astype(np.int32))

    def take(self, which: Tensor, further: Walks) -> None:
        """Writes back the state of walks that `on_host` copied, with their further steps."""
        self.at.index_copy_(0, which, self._kernels.put(further.at))
        self.step.index_copy_(0, which, self._kernels.put(further.step))
        new = self._kernels.put(further.trace)
        self.trace.index_copy_(0, which, torch.where(new < 0, self.trace.index_select(0, which), new))

    def visits(self, walks: int, every: int, most: int, roots: Tensor | None = None) -> Visited:
        """Counts the visits of each root, as `kernels.walks.Walks.visits`. Does not wait.

        Each root's visits are sorted by node with a stable sort: equal nodes stand together, the first visit first.
        """
        n, length = len(self) // walks, self.rule.length
        size = walks * (length // every)
        ids = self.trace.view(n, walks, length)[:, :, every - 1 :: every].reshape(n, size)
        if roots is not None:
            ids = torch.where(ids == roots[:, None], -1, ids)
        most = size if most < 0 else min(most, size)
        nodes, visit = torch.sort(ids, dim=1, stable=True)
        place = torch.arange(size, device=ids.device)
        begins = nodes >= 0
        begins[:, 1:] &= nodes[:, 1:] != nodes[:, :-1]
        visits = torch.searchsorted(nodes, nodes, right=True) - place
        order = torch.where(begins, visits * size + (size - 1 - visit), -1)  # more visits first, then the first visited
        best, at = torch.topk(order, most, dim=1)
        return Visited(nodes.gather(1, at), best // size, (best >= 0).sum(1))
