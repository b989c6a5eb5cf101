"""What the loaders of one rank share: the mapped graph, the sampler processes, the memory of batches."""
