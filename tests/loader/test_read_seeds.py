"""Attributes of a loader's seeds, and seeds drawn by weight, are the same wherever the graph is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glt_lightning.base import DataError, OptionError, SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.workers import Ranks
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.servers import contents_of, inline, open_farm


@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_attributes_come_in_the_order_of_the_seeds(make, tmp_path) -> None:
    data = make()
    truth = data if make is small_graph else data["paper"]
    partition = partitioned(data, tmp_path, 3)
    seeds = np.array([7, 150, 7, 0, 199])
    own = LoaderSpec(
        name="train", seeds=seeds, node_type=None if make is small_graph else "paper", num_neighbors=[4], batch_size=2
    )
    with open_farm("in process") as farm, Session(partition, SamplingOptions(), ranks=Ranks(1, 2)) as local:
        remote = farm.context(farm.serve(partition).address)
        for context in (local, remote):
            for name in ("x", "y"):
                assert np.array_equal(context.read_seeds(own, name), truth[name].numpy()[seeds]), name
        assert len(remote.read_seeds(replace(own, seeds=seeds[:0]), "y")) == 0
        with pytest.raises(DataError, match="have no attribute 'z'; they have x, y"):
            local.read_seeds(own, "z")


def test_weighted_seeds_of_a_server_are_those_of_a_mapped_graph(tmp_path) -> None:
    partition = partitioned(small_graph(), tmp_path, 2)
    count = partition.manifest.splits["train"].count
    spec = LoaderSpec(
        name="train", split="train", num_neighbors=[3], batch_size=8, shuffle=True, seed_weights=np.arange(count)
    )
    with open_farm("in process") as farm:
        place = {"rank": 1, "world_size": 2}
        context = farm.context(farm.serve(partition).address, **place)
        assert contents_of(context, spec) == inline(partition, spec, **place)
        with pytest.raises(OptionError, match=f"expected one for each of the {count} seeds"):
            context.make_loader(replace(spec, seed_weights=np.ones(3)))
    with pytest.raises(OptionError, match="seed_weights: expected numbers, got <U1"):
        replace(spec, seed_weights=np.array(["a"]))
