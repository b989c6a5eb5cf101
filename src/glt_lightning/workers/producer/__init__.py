"""The producers of batches: this process, or sampler processes beside it."""
