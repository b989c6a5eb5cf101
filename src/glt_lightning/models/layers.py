"""Convolutions of PyG by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, conv as pyg_convs

from glt_lightning.base import OptionError


def conv_names() -> list[str]:
    """The convolutions of PyG that can be made by name."""
    return [name for name in pyg_convs.__all__ if name.endswith("Conv")]


def make_conv(name: str, width: int, options: Mapping[str, Any], *, two_types: bool) -> nn.Module:
    """A convolution of PyG, [N, width] -> [N, width]; with ``two_types`` from nodes [N_src, width] to nodes [N_dst, width].

    Raises `OptionError` for one that needs more than x and edge_index, which is detected by running it once.
    """
    refuse_cached(name, options)
    kind = getattr(pyg_convs, name)
    known = inspect.signature(kind.__init__).parameters
    options = dict(options)
    if "heads" in known and "concat" in known:
        options.setdefault("concat", False)  # heads are averaged, so that the width stays
    if two_types and "add_self_loops" in known:
        options.setdefault("add_self_loops", False)
    reason = ""
    for width_in in ((width, width), width) if two_types else (width,):
        try:
            conv = kind(width_in, width, **options)
            _try(conv, width, two_types)
            return conv
        except Exception as error:  # PyG does not document what its classes raise
            reason = (
                reason or f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            )
    what = "edges between two node types" if two_types else "x and edge_index"
    raise OptionError(
        f"encoder: {name} cannot be used here: with {what} alone, width {width} and encoder_kwargs {dict(options)} it raises "
        f"{reason[:200]}. Choose another encoder, or correct encoder_kwargs."
    )


def refuse_cached(name: str, options: Mapping[str, Any]) -> None:
    """Raises `OptionError` for ``cached``, with which PyG keeps the edges that a layer is given first."""
    if options.get("cached"):
        raise OptionError(
            f"{name}: cached: expected false, got {options['cached']!r}: PyG would use the edges of the first batch for all "
            "batches. Remove it."
        )


def _try(conv: nn.Module, width: int, two_types: bool) -> None:
    edge_index = torch.tensor([[0, 1, 2], [1, 0, 1]])
    x: Any = (torch.zeros(3, width), torch.zeros(2, width)) if two_types else torch.zeros(3, width)
    with torch.no_grad():
        out = conv.eval()(x, edge_index)
    conv.train()
    if not isinstance(out, Tensor) or out.shape != (2 if two_types else 3, width):
        raise ValueError(f"its output is {list(out.shape) if isinstance(out, Tensor) else type(out).__name__}")


def made(name: str, kind: type[MessagePassing], *arguments: Any, **options: Any) -> Any:
    """A convolution of PyG. Raises `OptionError` for arguments that it refuses."""
    try:
        return kind(*arguments, **options)
    except (TypeError, ValueError, AssertionError, ZeroDivisionError) as error:
        raise OptionError(f"encoder: {name} with encoder_kwargs {options}: {error or type(error).__name__}.") from None
