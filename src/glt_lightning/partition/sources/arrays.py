"""Converts tensors, arrays and lists given by a script to arrays on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from glt_lightning.base import DataError


def host_array(name: str, value: Any) -> np.ndarray:
    """A tensor of any device, an array or a list as an array; bfloat16, which numpy lacks, becomes float32."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: expected a dense tensor or an array ({str(error).splitlines()[0]}).") from None


def edge_ends(name: str, value: Any) -> np.ndarray:
    """Integers [2, E] from a tensor, an array, or a pair of them."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        sources, destinations = (host_array(name, ids) for ids in value)
        if sources.shape != destinations.shape:
            raise DataError(
                f"{name}: sources and destinations differ in shape: {list(sources.shape)} and {list(destinations.shape)}. Give "
                "two arrays [E]."
            )
        value = np.stack([sources, destinations])
    ends = host_array(name, value)
    if ends.ndim != 2 or ends.shape[0] != 2 or (ends.dtype.kind not in "iu" and ends.size):
        raise DataError(
            f"{name}: expected integers [2, E] (sources, destinations), got {ends.dtype} {list(ends.shape)}."
        )
    return ends if ends.size else np.zeros((2, 0), np.int64)
