"""The comparison of batches that other tests rely on sees every difference, and says where it is."""

import pytest
import torch
from torch_geometric.data import Data

from tests.helpers.contents import contents, difference


def batch(**changes) -> Data:
    fields = {"x": torch.tensor([[1.0, 0.0], [2.0, float("nan")]]), "y": torch.tensor([3, 4]), "batch_size": 2}
    return Data(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": torch.tensor([[1.0, 0.0], [2.5, float("nan")]])},
            r"field x: 1 of 4 .* first at \[1, 0\]: .*2.5\)?, expected .*2.0",
        ),
        ({"x": torch.tensor([[1.0, -0.0], [2.0, float("nan")]])}, r"field x: 1 of 4 .* at \[0, 1\]"),
        ({"y": torch.tensor([3, 4], dtype=torch.int32)}, "field y: dtype torch.int32, expected torch.int64"),
        ({"y": torch.tensor([[3], [4]])}, r"field y: shape \(2, 1\), expected \(2,\)"),
        ({"batch_size": 3}, r"field batch_size: 1 of 1 .*3\)?, expected .*2"),
        ({"more": 1}, "has the fields"),
    ],
)
def test_each_difference_is_named(changes, message):
    got, want = [contents(batch()), contents(batch(**changes))], [contents(batch()), contents(batch())]
    assert got[0] == want[0]
    assert len({*got, *want}) == 2
    with pytest.raises(AssertionError, match=rf"\[1\] {message}"):
        assert got == want


def test_what_is_missing():
    assert difference([contents(batch())], []) == "1 of them, expected 0; all that both have are equal"
    assert difference([[contents(batch())]], [[contents(batch())]]) is None
