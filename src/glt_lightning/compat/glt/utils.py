"""GraphLearn-for-PyTorch's `utils`, for its scripts; nothing of ours uses them."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, parse_bytes
from glt_lightning.compat.glt.feature import usable_device
from glt_lightning.compat.glt.graph import Topology

# GLT's examples call some of these as ``glt.utils.common.seed_everything``.
common = sys.modules[f"{__name__}.common"] = sys.modules[__name__]

__all__ = [
    "assign_device",
    "convert_to_tensor",
    "coo_to_csc",
    "coo_to_csr",
    "count_dict",
    "ensure_device",
    "ensure_dir",
    "get_available_device",
    "get_free_port",
    "id2idx",
    "index_select",
    "load_ckpt",
    "merge_dict",
    "parse_size",
    "ptr2ind",
    "save_ckpt",
    "seed_everything",
    "share_memory",
    "squeeze",
    "tensor_equal_with_device",
]


def ensure_dir(path: str | os.PathLike[str]) -> None:
    """Makes a folder where there is none."""
    Path(path).mkdir(parents=True, exist_ok=True)


def get_free_port(host: str = "localhost") -> int:
    """A port of this host that nobody listens at now; another process may take it before you do."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def seed_everything(seed: int) -> None:
    """Seeds the generators of Python, numpy and torch; loaders without a seed of their own take torch's."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


def parse_size(size: int | str) -> int:
    """Bytes of ``64MB`` and the like, by powers of 1024, as GLT reads them."""
    if isinstance(size, str):
        text = size.strip().upper().removesuffix("B")
        for letter, power in (("K", 1), ("M", 2), ("G", 3)):
            if text.endswith(letter):
                return int(float(text.removesuffix(letter)) * 1024**power)
    return parse_bytes("size", size)


def id2idx(ids: Any) -> Tensor:
    """int64 [largest id + 1]: the position of each id, 0 for those that there are not."""
    ids = torch.as_tensor(ids).long()
    found = torch.zeros(int(ids.max()) + 1 if len(ids) else 0, dtype=torch.int64)
    found[ids] = torch.arange(len(ids))
    return found


def ptr2ind(ptr: Tensor) -> Tensor:
    """The row of each entry."""
    return torch.repeat_interleave(torch.arange(len(ptr) - 1, device=ptr.device), ptr.diff())


def coo_to_csr(
    row: Any, col: Any, edge_id: Any = None, edge_weight: Any = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(pointers, columns, edge ids, weights)."""
    return Topology((row, col), edge_id, edge_weight).to_csr()


def coo_to_csc(
    row: Any, col: Any, edge_id: Any = None, edge_weight: Any = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(rows, pointers, edge ids, weights)."""
    return Topology((row, col), edge_id, edge_weight, layout="CSC").to_csc()


def tensor_equal_with_device(lhs: Tensor, rhs: Tensor) -> bool:
    """Whether two tensors lie on one device and are equal."""
    return lhs.device == rhs.device and torch.equal(lhs, rhs)


def convert_to_tensor(data: Any, dtype: torch.dtype | None = None) -> Any:
    """Tensors of arrays and lists, also in dictionaries and lists of arrays; None stays."""
    if isinstance(data, Mapping):
        return {key: convert_to_tensor(each, dtype) for key, each in data.items()}
    return None if data is None else torch.as_tensor(data, dtype=dtype)


def index_select(data: Any, index: Any) -> Any:
    """``data[index]`` of arrays, also in dictionaries, lists and tuples of them; None stays."""
    if isinstance(data, Mapping):
        return {key: index_select(each, index) for key, each in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(index_select(each, index) for each in data)
    return None if data is None else data[index]


def share_memory(data: Any) -> Any:
    """The tensors, in memory that processes share; also in dictionaries and lists."""
    if isinstance(data, Mapping):
        return {key: share_memory(each) for key, each in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(share_memory(each) for each in data)
    return data.share_memory_() if isinstance(data, Tensor) else data


def squeeze(data: Any) -> Any:
    """Tensors without dimensions of length 1; also in dictionaries."""
    if isinstance(data, Mapping):
        return {key: squeeze(each) for key, each in data.items()}
    return None if data is None else convert_to_tensor(data).squeeze()


def get_available_device(device: Any = None) -> torch.device:
    """``device``, or a GPU, or the CPU where there is none."""
    return torch.device(usable_device("cuda" if device is None and torch.cuda.is_available() else device or "cpu"))


def ensure_device(device: torch.device) -> None:
    """Makes a GPU the current one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def assign_device() -> torch.device:
    """The current GPU, or the CPU where there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def merge_dict(in_dict: Mapping[Any, Any], out_dict: dict[Any, list[Any]]) -> None:
    """Appends each value to the list of its key."""
    for key, value in in_dict.items():
        out_dict.setdefault(key, []).append(value)


def count_dict(in_dict: Mapping[Any, Any], out_dict: dict[Any, list[int]], target_len: int) -> None:
    """Appends the length of each value, after zeros up to ``target_len`` entries."""
    for key, value in in_dict.items():
        counts = out_dict.setdefault(key, [])
        counts += [0] * (target_len - 1 - len(counts)) + [len(value)]


def save_ckpt(ckpt_seq: int, ckpt_dir: str, model: torch.nn.Module, optimizer: Any = None, epoch: float = 0) -> None:
    """Writes ``model_seq_N.ckpt``: model, optimizer and epoch."""
    ensure_dir(ckpt_dir)
    state = {"seq": ckpt_seq, "epoch": epoch, "model_state_dict": model.state_dict()}
    state |= {} if optimizer is None else {"optimizer_state_dict": optimizer.state_dict()}
    torch.save(state, Path(ckpt_dir) / f"model_seq_{ckpt_seq}.ckpt")


def load_ckpt(ckpt_seq: int, ckpt_dir: str, model: torch.nn.Module, optimizer: Any = None) -> float:
    """Reads what `save_ckpt` wrote, nothing else is unpickled; returns the epoch. Raises `DataError` where it is missing."""
    path = Path(ckpt_dir) / f"model_seq_{ckpt_seq}.ckpt"
    if not path.is_file():
        raise DataError(f"{path}: there is no such checkpoint.")
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model_state_dict"])
    if optimizer is not None and "optimizer_state_dict" in state:
        optimizer.load_state_dict(state["optimizer_state_dict"])
    return float(state["epoch"])
