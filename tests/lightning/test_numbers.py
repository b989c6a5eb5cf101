"""Numbers as people read them."""

from __future__ import annotations

import pytest

from glt_lightning.base import counted


@pytest.mark.parametrize(
    ("number", "thing", "said"),
    [
        (1, "part", "1 part"),
        (0, "seed", "0 seeds"),
        (2000, "node", "2,000 nodes"),
        (2, "batch", "2 batches"),
        (4, "epoch", "4 epochs"),
    ],
)
def test_one_thing_is_singular(number: int, thing: str, said: str) -> None:
    assert counted(number, thing) == said
