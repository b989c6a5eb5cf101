"""Who makes batches: this process, or sampler processes beside it."""
