"""What pieces of a node's edges add up to is what all of them give together."""

from __future__ import annotations

import pytest
import torch

from glt_lightning.inference import RunningSoftmax, RunningSum


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_softmax(scale: float) -> None:
    drawn = torch.Generator().manual_seed(0)
    scores, rows = torch.randn(50, 3, generator=drawn).sort(0).values * scale, torch.randn(50, 3, 4, generator=drawn)
    expected = torch.einsum("nh,nhc->hc", scores.softmax(0), rows)
    for order in (torch.arange(50), torch.arange(50).flip(0)):
        for at_once in (1, 7, 50):
            found = RunningSoftmax(3, rows.new_empty(4))
            for piece in order.split(at_once):
                found.add(scores[piece], rows[piece])
            torch.testing.assert_close(found.value(), expected, rtol=1e-5, atol=1e-6)


def test_nothing_was_added() -> None:
    found = RunningSoftmax(2, torch.empty(3))
    found.add(torch.empty(0, 2), torch.empty(0, 2, 3))
    assert found.value().tolist() == [[0.0] * 3] * 2
    assert RunningSum(torch.empty(3), mean=True).value().tolist() == [0.0] * 3


@pytest.mark.parametrize("mean", [False, True])
def test_sum(mean: bool) -> None:
    rows = torch.arange(20.0).view(10, 2)
    found = RunningSum(rows[0], mean=mean)
    for piece in rows.split(3):
        found.add(piece)
    assert found.value().equal(rows.mean(0) if mean else rows.sum(0))
