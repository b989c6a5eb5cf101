"""A rank and its collective calls, as one value."""

from __future__ import annotations

import pytest

from glt_lightning.base import CacheOptions, OptionError
from glt_lightning.loader import LoaderContext
from glt_lightning.workers import Ranks
from tests.helpers.partitions import partitioned, small_graph


def test_a_process_without_peers():
    ranks = Ranks()
    assert (ranks.rank, ranks.world_size, ranks.name, ranks.gather_counts) == (0, 1, "rank 0", None)
    assert ranks.exchange("text") == ["text"]


def test_a_name_of_its_own_stays():
    assert Ranks(3, 4).name == "rank 3"
    assert Ranks(3, 4, name="rank 3 (pid 7 on node1)").name == "rank 3 (pid 7 on node1)"


def test_fields_one_by_one_or_as_one_value(tmp_path):
    graph = partitioned(small_graph(), tmp_path, 1)
    for given in ({"ranks": Ranks(1, 2)}, {"rank": 1, "world_size": 2}):
        with LoaderContext(graph, **given) as context:
            assert (context.rank, context.world_size) == (1, 2)
    with pytest.raises(OptionError, match="give either ranks or rank, world_size, not both"):
        LoaderContext(graph, ranks=Ranks(1, 2), rank=1, world_size=2)


def test_none_is_a_field_that_is_not_given(tmp_path):
    """``cache.memory`` is shared by an exchange."""
    graph, cache = partitioned(small_graph(), tmp_path, 1), CacheOptions(memory="1MB")
    with LoaderContext(graph, cache=cache, exchange=None, gather_counts=None) as context:
        assert context.rank == 0


@pytest.mark.parametrize("name", ["cach", "name"])
def test_a_misspelt_argument_is_one_of_the_context(tmp_path, name):
    with pytest.raises(TypeError, match=rf"LoaderContext\(\) got an unexpected keyword argument '{name}'"):
        LoaderContext(partitioned(small_graph(), tmp_path, 1), **{name: "x"})
