"""The kernels of the CUDA library on torch tensors, one file per kind of op."""
