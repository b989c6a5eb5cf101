"""What torch has saved, tensors and graphs of PyG, read without trusting pickles."""

from __future__ import annotations

import pickle
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import open_regular

UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    AssertionError,
    LookupError,
    MemoryError,
    OverflowError,
    TypeError,
    AttributeError,
    struct.error,
    zlib.error,
    pickle.UnpicklingError,
)
_DTYPES = (np.bool_, np.int8, np.int16, np.int32, np.int64, np.float32, np.float64)


def load_saved(path: Path, expected: str) -> Any:
    """Tensors, arrays and what holds them. Raises `DataError` for a file of another kind."""
    import torch

    try:
        with known_classes(), open_regular(path) as stream:
            return torch.load(stream, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise DataError(f"{path}: expected {expected} ({_reason(error)}).") from None


def _reason(error: BaseException) -> str:
    if refused := re.search(r"Unsupported \w+: GLOBAL (\S+)", str(error)):
        return f"it holds {refused[1]}, which is not read, as a file may run anything that way; leave it out"
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()][:2])


@contextmanager
def known_classes() -> Iterator[None]:
    """Lets torch read exactly the classes that graphs of PyG and OGB's files hold (torch >= 2.6 refuses them by default)."""
    import torch
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    rebuild = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    arrays = [np.ndarray, np.dtype, rebuild, (rebuild, "numpy.core.multiarray._reconstruct")]
    graphs = [Data, HeteroData, DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    needed = [*graphs, *arrays, *(type(np.dtype(d)) for d in _DTYPES)]
    # On leaving, torch forgets all that it was given, whether it knew it before or not.
    known = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([each for each in needed if each not in known]):
        yield
