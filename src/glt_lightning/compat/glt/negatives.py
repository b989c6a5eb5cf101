"""GraphLearn-for-PyTorch's `RandomNegativeSampler`: pairs of nodes without an edge, of a graph in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from glt_lightning.base import OptionError
from glt_lightning.compat.glt.graph import Graph


class RandomNegativeSampler:
    """Draws pairs of nodes that are no edges, by torch's generator.

    graph: a `Graph`.  mode: ``CPU`` or ``CUDA``; the pairs are drawn on the CPU in each case.  edge_dir: ``out`` for a
    topology of layout ``CSR``, ``in`` for ``CSC``.

    >>> graph = glt.data.Graph(glt.data.Topology(np.array([[0, 0, 1, 1], [0, 1, 0, 2]])), mode="CPU")
    >>> {tuple(pair) for pair in glt.sampler.RandomNegativeSampler(graph, mode="CPU").sample(9, trials_num=20).T.tolist()}
    {...(...)...}
    """

    def __init__(self, graph: Graph, mode: str = "CUDA", edge_dir: str = "out") -> None:
        if mode.upper() not in ("CPU", "CUDA") or edge_dir not in ("out", "in"):
            raise OptionError(
                "RandomNegativeSampler: expected mode 'CPU' or 'CUDA' and edge_dir 'out' or 'in', got "
                f"{mode!r} and {edge_dir!r}."
            )
        topo = graph.topo
        self._shape = topo.row_count, int(topo.indices.max()) + 1 if topo.edge_count else 0
        rows = torch.repeat_interleave(torch.arange(topo.row_count), topo.degrees)
        self._edges = (rows * self._shape[1] + topo.indices).unique()  # sorted
        self._turned = edge_dir == "in"

    def sample(self, req_num: int, trials_num: int = 5, padding: bool = False) -> Tensor:
        """int64 [2, n]: sources and destinations of ``req_num`` pairs, or of fewer where ``trials_num`` draws of each find only
        edges. padding: those are then any pairs."""
        rows, columns = self._shape
        if not rows * columns:
            return torch.empty(2, 0, dtype=torch.int64)
        found, left = torch.empty(req_num, dtype=torch.int64), torch.arange(req_num)
        for _ in range(max(1, trials_num)):
            found[left] = torch.randint(rows * columns, (len(left),))
            left = left[torch.isin(found[left], self._edges)]
            if not len(left):
                break
        if not padding:
            missing = torch.zeros(req_num, dtype=torch.bool)
            missing[left] = True
            found = found[~missing]
        pairs = torch.stack([found // columns, found % columns])
        return pairs.flip(0) if self._turned else pairs
