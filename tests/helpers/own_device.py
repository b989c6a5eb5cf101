"""A device of its own, on a machine without one: tensors that lie there do not mix with those of the host, as those of a GPU do
not. It computes with torch's operators for the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.accelerators import CPUAccelerator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("glt_test")
DEVICE = torch.device("glt_test", 0)


class Elsewhere(Tensor):
    """A tensor of the device. held: its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=DEVICE, requires_grad=held.requires_grad
        )
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"Elsewhere({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


def _register() -> torch.library.Library:
    """``torch.tensor(3, device=DEVICE)`` passes modes by."""

    def empty(*shape: Any, device: Any = None, **options: Any) -> Tensor:
        return Elsewhere(torch.empty(*shape, **options))

    def empty_strided(*shape: Any, device: Any = None, **options: Any) -> Tensor:
        return Elsewhere(torch.empty_strided(*shape, **options))

    def copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        held = [each.held if isinstance(each, Elsewhere) else each for each in (source, target)]
        held[1].copy_(held[0])
        return target

    library = torch.library.Library("aten", "IMPL")
    for name, made in (("empty.memory_format", empty), ("empty_strided", empty_strided), ("_copy_from", copy)):
        library.impl(name, made, "PrivateUse1")
    return library


_library = _register()


class OwnDevice(TorchDispatchMode):
    """With it on, ``.to(DEVICE)`` and factories such as ``torch.zeros(3, device=DEVICE)`` work.

    copied: number of tensors that were brought to the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        moves = func is torch.ops.aten._to_copy.default and kwargs.get("device") == DEVICE
        self.copied += moves and not isinstance(args[0], Elsewhere)
        return _call(func, args, kwargs)


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
    there, asked = [each for each in given if isinstance(each, Elsewhere)], kwargs.get("device")
    copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    if there and not copies and (mixed := [t for t in given if not isinstance(t, Elsewhere) and t.dim()]):
        raise RuntimeError(f"{func}: tensors on {DEVICE} and on the host, such as {list(mixed[0].shape)}")
    if asked is not None and torch.device(asked).type == DEVICE.type:
        kwargs = kwargs | {"device": torch.device("cpu")}
    out = func(*tree_map_only(Elsewhere, lambda t: t.held, args), **tree_map_only(Elsewhere, lambda t: t.held, kwargs))
    stays = bool(there) if asked is None else torch.device(asked).type == DEVICE.type
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if not stays:
        return out
    of = {id(each.held): each for each in there}  # an operator that writes in place returns what it was given
    return tree_map_only(Tensor, lambda t: of.get(id(t)) if id(t) in of else Elsewhere(t), out)


class OwnAccelerator(CPUAccelerator):
    """Lightning's, with the device."""

    def setup_device(self, device: torch.device) -> None:
        assert device == DEVICE


@contextmanager
def own_device() -> Iterator[OwnDevice]:
    with OwnDevice() as mode:
        yield mode
