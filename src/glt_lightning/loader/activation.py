"""A ReLU and dropout in one pass, as a torch op on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from glt_lightning import kernels
from glt_lightning.kernels import relu_dropout_grad
from glt_lightning.loader.aggregation import has_kernels, know_source, value_name

know_source(__name__, __file__)


def relu_dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """``dropout(x.relu(), p, training)``.

    On the CPU, for float32, float64 and bfloat16, one pass makes it, and its result alone is kept for the gradient. What is
    dropped then follows from one number of torch's generator, so it is another choice than torch's with the same seed.

    Example:
        >>> import torch
        >>> from glt_lightning.loader import relu_dropout
        >>> relu_dropout(torch.tensor([-1.0, 2.0]), 0.5, training=False)
        tensor([0., 2.])
    """
    if not training or not 0 < p < 1 or x.device.type != "cpu" or not has_kernels(x):
        return functional.dropout(x.relu(), p, training)
    seed = torch.randint(2**62, ())
    out: Tensor = torch.ops.glt_lightning.relu_dropout(x, seed, int(p * 2**32))
    return out


@torch.library.custom_op("glt_lightning::relu_dropout", mutates_args=(), device_types="cpu")
def _relu_dropout(x: Tensor, seed: Tensor, dropped: int) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    shape = (len(x), x.numel() // max(1, len(x)))
    threads = torch.get_num_threads()
    kernels.relu_dropout(value_name(x), x.data_ptr(), shape, dropped, int(seed), out.data_ptr(), threads=threads)
    return out


@torch.library.custom_op("glt_lightning::relu_dropout_grad", mutates_args=(), device_types="cpu")
def _relu_dropout_grad(grad: Tensor, out: Tensor, dropped: int) -> Tensor:
    grad = grad.contiguous()
    grad_x, threads = torch.empty_like(out), torch.get_num_threads()
    addresses = grad.data_ptr(), out.data_ptr()
    relu_dropout_grad(value_name(out), *addresses, out.numel(), dropped, grad_x.data_ptr(), threads=threads)
    return grad_x


@_relu_dropout.register_fake
def _(x: Tensor, seed: Tensor, dropped: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_relu_dropout_grad.register_fake
def _(grad: Tensor, out: Tensor, dropped: int) -> Tensor:
    return torch.empty_like(out)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.dropped = inputs[2]
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.glt_lightning.relu_dropout_grad(grad, ctx.saved_tensors[0], ctx.dropped), None, None


_relu_dropout.register_autograd(_backward, setup_context=_save)
