"""A GPU that has some parts, and asks owners for the others, gives the batches of the CPU, bit for bit."""

import itertools

import numpy as np
import pytest
import torch

from glt_lightning.options import CacheOptions
from glt_lightning.sampler.cluster import ClusterSampler
from glt_lightning.sampler.device_cluster import DeviceClusterSampler
from glt_lightning.sampler.device_store import open_store
from glt_lightning.sampler.neighbor import NeighborSampler
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from tests.helpers.owners import split_up
from tests.helpers.partitions import partitioned, small_graph, small_hetero

COUNTED = [f"{kind}_{what}" for kind in ("local", "cached", "remote") for what in ("rows", "bytes")]
COUNTED += ["frontier_rows", "cached_frontier_rows", "remote_frontier_rows"]


def written(draft):
    return draft.write(np.zeros(draft.nbytes, dtype=np.uint8))


def as_array(value):
    return value.numpy() if isinstance(value, torch.Tensor) else value


def assert_same(sample, expected):
    assert sample.arrays.keys() == expected.keys()
    for name, want in expected.items():
        got = as_array(sample.arrays[name])
        assert got.dtype == want.dtype, name
        np.testing.assert_array_equal(got, want, err_msg=name)


class Case:
    """The same graph in one piece, in parts for the CPU, and in parts for the device."""

    def __init__(self, kernels, folder, make, owners, features="device", storage=None):
        self.whole = partitioned(make(), folder, sum(map(len, owners)), undirected=True, storage=storage)
        self.here, self.remote = split_up(self.whole, owners)
        self.store = open_store(self.here, kernels, topology="device", features=features, cache=CacheOptions())
        self.seeds = self.whole.split("train")
        self.relations = len(self.whole.schema.edge_types)

    def config(self, *fanouts, **options):
        return SamplerConfig(self.seeds.node_type, tuple((k,) * self.relations for k in fanouts), **options)

    def check(self, config, numbers=range(2), kept=(None, None)):
        """Batches one after the other. kept: for the CPU's sampler and for the device's."""
        device = DeviceClusterSampler(self.store, self.here, config, self.remote, kept[1])
        cpu = ClusterSampler(self.here, config, self.remote, kept[0])
        for number in numbers:
            chosen = np.ascontiguousarray(self.seeds.gids[number * 7 : number * 7 + 16])
            self.check_batch(config, BatchRequest(number, 99 + number, chosen, np.arange(16)), device, cpu)

    def check_batch(self, config, request, device, cpu):
        draft, sample = cpu.draft(request), device.make(request)
        expected = written(draft)
        assert sample.number == request.number
        assert_same(sample, expected)
        assert_same(sample, written(NeighborSampler(self.whole, config).draft(request)))
        for name in COUNTED:
            assert getattr(sample.counters, name) == getattr(draft.counters, name), name


@pytest.mark.parametrize("features", ["device", "cpu"])
@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("owners", [[[0], [1]], [[1], [0]], [[0, 3], [2], [1]], [[2], [0], [1], [3]], [[0, 1, 2, 3]]])
def test_same_batch(kernels, tmp_path, make, owners, features):
    case = Case(kernels, tmp_path, make, owners, features)
    for fanouts, replace, with_edge in itertools.product(([4, 3], [2, -1, 3]), (False, True), (False, True)):
        case.check(case.config(*fanouts, replace=replace, with_edge=with_edge))
