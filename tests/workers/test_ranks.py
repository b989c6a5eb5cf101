"""A rank and its collective calls, as one value."""

from __future__ import annotations

from glt_lightning.workers import Ranks


def test_a_process_without_peers():
    ranks = Ranks()
    assert (ranks.rank, ranks.world_size, ranks.name, ranks.gather_counts) == (0, 1, "rank 0", None)
    assert ranks.exchange("text") == ["text"]


def test_a_name_of_its_own_stays():
    assert Ranks(3, 4).name == "rank 3"
    assert Ranks(3, 4, name="rank 3 (pid 7 on node1)").name == "rank 3 (pid 7 on node1)"
