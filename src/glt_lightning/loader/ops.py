"""Kernels as torch ops: for compilers and transforms through torch's dispatcher, else past it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Formula(NamedTuple):
    """The gradient of an op, as `torch.library.register_autograd` takes it."""

    save: Callable[[Any, tuple[Any, ...], Tensor], None]
    backward: Callable[[Any, Tensor], tuple[Tensor | None, ...]]


# torch asks `inspect` for the source of each op that is made, which would look through the files of all modules: 0.09 CPU s and
# 25,000 system calls of each start. This is its own cache of the answers.
_known: dict[str, str] = getattr(inspect, "modulesbyfile", {})
_known[__file__] = __name__


def make_op(
    name: str,
    kernel: Callable[..., Tensor],
    devices: tuple[str, ...],
    fake: Callable[..., Tensor],
    formula: Formula | None = None,
) -> Callable[..., Tensor]:
    """Registers `torch.ops.glt_lightning.name` and returns a function that does the same. A call that autograd alone sees takes
    the kernel as a `torch.autograd.Function`, forward and backward in 40 us with torch's own, where the op takes 84 to 100.

    kernel: makes the output, on devices.  fake: the same without values.  formula: None where there is no gradient.
    """
    op = torch.library.custom_op(f"glt_lightning::{name}", kernel, mutates_args=(), device_types=devices)
    op.register_fake(fake)
    registered = getattr(torch.ops.glt_lightning, name)
    if formula is None:

        def run(*inputs: Any) -> Tensor:
            # With gradients of gradients, the op tells that there is no formula.
            direct = not torch.is_grad_enabled() and is_plain(inputs, devices)
            out: Tensor = kernel(*inputs) if direct else registered(*inputs)
            return out

        return run
    save, backward = formula
    op.register_autograd(backward, setup_context=save)

    def forward(ctx: Any, *inputs: Any) -> Tensor:
        out = kernel(*inputs)
        save(ctx, inputs, out)
        return out

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(name, (torch.autograd.Function,), members)

    def run_with_gradient(*inputs: Any) -> Tensor:
        out: Tensor = function.apply(*inputs) if is_plain(inputs, devices) else registered(*inputs)
        return out

    return run_with_gradient


_SEEN = (Tensor, nn.Parameter)


def is_plain(inputs: tuple[Any, ...], devices: tuple[str, ...]) -> bool:
    """Whether autograd alone sees a call, no compiler, tracer, transform of `torch.func`, mode or subclass, and its tensors are
    on devices that have the kernel."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return False
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    return all(type(each) in _SEEN and each.device.type in devices for each in tensors)
