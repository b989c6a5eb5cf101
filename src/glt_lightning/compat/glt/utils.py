"""GraphLearn-for-PyTorch's `utils`, for its scripts; nothing of ours uses them."""

from __future__ import annotations

import os
import random
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, lazy_names

# GLT's examples call some of these as ``glt.utils.common.seed_everything``.
common = sys.modules[f"{__name__}.common"] = sys.modules[__name__]

__all__ = [
    "ensure_dir",
    "get_free_port",
    "id2idx",
    "load_ckpt",
    "save_ckpt",
    "seed_everything",
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


def id2idx(ids: Any) -> Tensor:
    """int64 [largest id + 1]: the position of each id, 0 for those that there are not."""
    ids = torch.as_tensor(ids).long()
    found = torch.zeros(int(ids.max()) + 1 if len(ids) else 0, dtype=torch.int64)
    found[ids] = torch.arange(len(ids))
    return found


def tensor_equal_with_device(lhs: Tensor, rhs: Tensor) -> bool:
    """Whether two tensors lie on one device and are equal."""
    return lhs.device == rhs.device and torch.equal(lhs, rhs)


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


_REFUSED = {
    "assign_device": "{name}: use torch.device('cuda', torch.cuda.current_device()).",
    "convert_to_tensor": "{name}: use torch.as_tensor(data).",
    "coo_to_csc": "{name}: use glt.data.Topology((row, col), layout='CSC').to_csc().",
    "coo_to_csr": "{name}: use glt.data.Topology((row, col)).to_csr().",
    "count_dict": "{name}: use a loop of the script.",
    "ensure_device": "{name}: use torch.cuda.set_device(device).",
    "get_available_device": "{name}: use torch.device('cuda' if torch.cuda.is_available() else 'cpu').",
    "index_select": "{name}: use data[index].",
    "merge_dict": "{name}: use a loop of the script.",
    "parse_size": "{name}: sizes of options are numbers of bytes, or text such as '64MB'.",
    "ptr2ind": "{name}: use torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff()).",
    "share_memory": "{name}: use tensor.share_memory_().",
    "squeeze": "{name}: use tensor.squeeze().",
}

__getattr__, __dir__ = lazy_names(__name__, {}, _REFUSED)
