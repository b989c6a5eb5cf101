"""Calls past torch's dispatcher do what its ops do, and compilers, tracers and transforms see the ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from glt_lightning.loader import aggregate, ops, relu_dropout
from glt_lightning.loader.aggregation import edge_scores

INDPTR, SRC = torch.tensor([0, 2, 2, 5]), torch.tensor([1, 3, 0, 1, 2])


def steps(x: Tensor) -> list[Tensor]:
    """Outputs of each function, and the gradients of their sum."""
    torch.manual_seed(0)
    weights = torch.rand(5, 2, requires_grad=True)
    found = [aggregate(x, INDPTR, SRC, kind=kind) for kind in ("sum", "mean", "max", "min")]
    found.append(aggregate(x, INDPTR, SRC, weights=weights))
    rows = x.view(4, 2, 3)
    found += [edge_scores(rows[:3], rows, INDPTR, SRC), relu_dropout(x, 0.5)]
    return [*found, *torch.autograd.grad(sum(out.sin().sum() for out in found), [x, weights])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equals_the_ops(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 6).to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = steps(x)
        monkeypatch.setattr(ops, "is_plain", lambda *_: False)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, steps(x), strict=True))


def test_the_dispatcher_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    decide = ops.is_plain
    monkeypatch.setattr(ops, "is_plain", lambda *given: calls.append(decide(*given)) or calls[-1])
    steps(torch.randn(4, 6, requires_grad=True))
    assert len(calls) == 7 + 9  # backward, the weighted sum and the scores have two gradients
    assert all(calls)


def _made_by_make_fx(x: Tensor) -> str:
    return str(make_fx(lambda x: torch.autograd.grad(aggregate(x, INDPTR, SRC).sum(), x))(x).code)


def _traced(x: Tensor) -> str:
    return str(torch.jit.trace(lambda x: aggregate(x, INDPTR, SRC), x).graph)


@pytest.mark.parametrize("graph", [_made_by_make_fx, _traced])
def test_tracers_see_ops(graph: Callable[[Tensor], str]) -> None:
    assert "glt_lightning" in graph(torch.randn(4, 6, requires_grad=True))


def test_maps_and_other_devices() -> None:
    x = torch.randn(2, 4, 6)
    mapped = torch.func.vmap(lambda each: aggregate(each, INDPTR, SRC))(x)
    assert torch.equal(mapped, torch.stack([aggregate(each, INDPTR, SRC) for each in x]))
    on_meta = [each.to("meta") for each in (x[0], INDPTR, SRC)]
    assert aggregate(*on_meta).shape == (3, 6)


def test_gradients_that_there_are_not_are_refused() -> None:
    x: Any = torch.randn(4, 6, requires_grad=True)
    (grad,) = torch.autograd.grad(aggregate(x, INDPTR, SRC).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="aggregate_grad"):
        torch.autograd.grad(grad.sum(), x)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        aggregate(forward_ad.make_dual(x.detach(), x.detach()), INDPTR, SRC)
