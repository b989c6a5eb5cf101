"""ReLU and dropout in one pass: what is kept, its gradient, and that it is random enough."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from glt_lightning.loader import relu_dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_keeps_a_share_and_scales_it(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(700, 300).to(dtype).requires_grad_()
    out = relu_dropout(x, p)
    kept = out != 0
    torch.testing.assert_close(out[kept], (x[kept].double() / (1 - p)).to(dtype))
    assert not (kept & (x <= 0)).any()
    positive = x > 0
    for share in (kept.sum() / positive.sum(), kept.sum(0) / positive.sum(0), kept.sum(1) / positive.sum(1)):
        far = 5 * (p * (1 - p) / (x.numel() / 2 / share.numel())) ** 0.5  # standard deviations
        assert (share - (1 - p)).abs().max() < far
    grad = torch.randn(x.shape).to(dtype)
    out.backward(grad)
    torch.testing.assert_close(x.grad, torch.where(kept, grad.double() / (1 - p), 0).to(dtype))


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = (relu_dropout(torch.ones(1000, 512), 0.5) != 0).double() - 0.5
    other = (relu_dropout(torch.ones(1000, 512), 0.5) != 0).double() - 0.5
    for a, b in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1]), (kept[:, 8:], kept[:, :-8]), (kept, other)):
        assert (a * b).mean().abs() < 5 * 0.25 / a.numel() ** 0.5


def test_follows_the_seed_and_no_threads() -> None:
    x, before, found = torch.randn(4000, 96), torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            found.append(relu_dropout(x, 0.5))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
    assert not torch.equal(found[0], relu_dropout(x, 0.5))


def test_without_dropout_it_is_relu() -> None:
    x = torch.randn(4, 5)
    assert torch.equal(relu_dropout(x, 0.5, training=False), x.relu())
    assert torch.equal(relu_dropout(x, 0.0), x.relu())
    assert not relu_dropout(x, 1.0).any()
    assert relu_dropout(torch.ones(0, 5), 0.5).shape == (0, 5)
    assert relu_dropout(torch.full((3,), float("nan")), 1e-6).isnan().all()


def test_is_a_sound_op() -> None:
    x, seed = torch.randn(6, 5, dtype=torch.float64, requires_grad=True), torch.tensor(5)
    opcheck(torch.ops.glt_lightning.relu_dropout, (x, seed, 2**31))
    torch.autograd.gradcheck(lambda x: torch.ops.glt_lightning.relu_dropout(x, seed, 2**31), x)
    compiled = torch.compile(lambda x: relu_dropout(x * 2, 0.5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    assert 0 < (compiled(torch.ones(64, 64)) != 0).double().mean() < 1
