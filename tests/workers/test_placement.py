"""Which parts of a graph a process maps."""

from __future__ import annotations

import pytest

from glt_lightning.workers import placed_parts


@pytest.mark.parametrize("slots", range(1, 7))
@pytest.mark.parametrize("num_parts", range(1, 7))
def test_every_part_is_somewhere_and_every_slot_has_one(slots: int, num_parts: int) -> None:
    placed = [placed_parts(slot, slots, num_parts) for slot in range(slots)]
    assert {part for parts in placed for part in parts} == set(range(num_parts))
    assert all(placed)
    for slot, parts in enumerate(placed):  # the rule that the documentation gives
        assert all(part % slots == slot % num_parts % slots for part in parts)
    if slots <= num_parts:
        assert sum(map(len, placed)) == num_parts
