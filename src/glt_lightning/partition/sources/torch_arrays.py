"""Tensors as arrays."""

from __future__ import annotations

import numpy as np
import torch

from glt_lightning.kernels import BFLOAT16


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A dense tensor of any device as an array, of the same memory where it can be; bfloat16, which numpy lacks, as
    `ops.encoding.BFLOAT16`."""
    tensor = tensor.detach().cpu()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.contiguous().view(torch.int16).numpy().view(BFLOAT16)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """The other way round, of the same memory."""
    return (
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype == BFLOAT16
        else torch.from_numpy(array)
    )
