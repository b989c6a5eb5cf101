"""PyG's NeighborLoader on the same graph, one thread: sampling, its loader, a tiny call.

    PYTHON_OF_PYG benchmarks/peer_pyg.py PARTITION

The interpreter needs torch_geometric and one of its samplers, pyg-lib or torch-sparse (``native`` in the output says which;
the package registry has only torch-sparse, which pip compiles against the installed torch: `pip install torch-sparse
--no-build-isolation`). PARTITION holds one part. PyG always returns edge ids.
"""

from __future__ import annotations

import torch
import torch_geometric.typing as available
from peer import (
    CASES,
    LOADER_FANOUTS,
    LOADER_SIZE,
    Options,
    PeerGraph,
    time_loader,
    time_sampling,
    time_tiny,
    tiny_rows,
)
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput
from torch_geometric.typing import SparseTensor


def as_data(indptr: torch.Tensor, indices: torch.Tensor) -> Data:
    """The rows as PyG keeps them: by destination, without the edge list."""
    nodes = len(indptr) - 1
    if available.WITH_TORCH_SPARSE:
        rows = SparseTensor(rowptr=indptr, col=indices, sparse_sizes=(nodes, nodes), is_sorted=True, trust_data=True)
        return Data(adj_t=rows, num_nodes=nodes)
    rows = torch.sparse_csr_tensor(indptr, indices, torch.ones(len(indices)), (nodes, nodes))
    return Data(adj_t=rows, num_nodes=nodes)


def edges_of(sampler: NeighborSampler, seeds: torch.Tensor) -> int:
    return int(sampler.sample_from_nodes(NodeSamplerInput(None, seeds)).row.numel())


def main() -> None:
    options = Options.parse(__doc__)
    native = "pyg-lib" if available.WITH_PYG_LIB else "torch-sparse"
    data = PeerGraph.load(options.partition)
    graph = as_data(data.indptr, data.indices)
    for fanouts in CASES:
        sampler = NeighborSampler(graph, [int(k) for k in fanouts.split(",")])
        time_sampling(
            "pyg", fanouts, data.train, options.seconds, lambda seeds, by=sampler: edges_of(by, seeds), native=native
        )
    graph.x, graph.y = data.x, data.y
    loader = NeighborLoader(graph, LOADER_FANOUTS, data.train, batch_size=LOADER_SIZE, shuffle=True)
    time_loader("pyg", loader, lambda batch: batch.x.shape[0], options.batches)
    few = NeighborSampler(as_data(*tiny_rows()), [5, 5])
    time_tiny("pyg", lambda seeds: edges_of(few, seeds))


if __name__ == "__main__":
    main()
