"""GraphLearn-for-PyTorch's names for scripts: graphs, partitioners, `NeighborSampler`."""
