"""GraphLearn-for-PyTorch on the same graph, one process, one thread: sampling, its loader, a tiny call.

    PYTHON_OF_GLT benchmarks/peer_glt.py PARTITION

Measured with graphlearn-torch 0.2.4 of the package registry and torch 2.4.1. A seed is given: without one GLT opens the
system's random device for each sampled node. PARTITION holds one part.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

# Its library names no CUDA library that it needs, but uses symbols of torch's.
with contextlib.suppress(OSError):  # a torch without CUDA has none
    ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10_cuda.so"), ctypes.RTLD_GLOBAL)
# It imports torch-sparse to change the layout of a graph, which is not done here.
if importlib.util.find_spec("torch_sparse") is None:
    sys.modules["torch_sparse"] = ModuleType("torch_sparse")

import graphlearn_torch as glt
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

CPU, SEED = torch.device("cpu"), 1


def sampler_of(indptr: torch.Tensor, indices: torch.Tensor, fanouts: list[int], with_edge: bool):
    graph = glt.data.Graph(glt.data.Topology((indptr, indices), input_layout="CSR", layout="CSR"), mode="CPU")
    graph.lazy_init()
    return glt.sampler.NeighborSampler(graph, fanouts, device=CPU, with_edge=with_edge, edge_dir="out", seed=SEED)


def edges_of(sampler: glt.sampler.NeighborSampler, seeds: torch.Tensor) -> int:
    return sampler.sample_from_nodes(glt.sampler.NodeSamplerInput(node=seeds)).row.numel()


def main() -> None:
    options = Options.parse(__doc__)
    data = PeerGraph.load(options.partition)
    for fanouts in CASES:
        for work in ("n_id", "e_id"):
            sampler = sampler_of(data.indptr, data.indices, [int(k) for k in fanouts.split(",")], work == "e_id")
            time_sampling(
                "glt", fanouts, data.train, options.seconds, lambda seeds, by=sampler: edges_of(by, seeds), (work,)
            )
    dataset = glt.data.Dataset(edge_dir="out")
    dataset.init_graph((data.indptr, data.indices), layout="CSR", graph_mode="CPU")
    dataset.init_node_features(data.x, with_gpu=False)
    dataset.init_node_labels(data.y)
    loader = glt.loader.NeighborLoader(
        dataset, LOADER_FANOUTS, data.train, batch_size=LOADER_SIZE, shuffle=True, device=CPU, seed=SEED
    )
    time_loader("glt", loader, lambda batch: batch.x.shape[0], options.batches)
    few = sampler_of(*tiny_rows(), [5, 5], False)
    time_tiny("glt", lambda seeds: edges_of(few, seeds))


if __name__ == "__main__":
    main()
