"""Where a GPU finds things: by numbers alone."""

from __future__ import annotations

import pytest

from glt_lightning.base import GpuBudgets, OptionError
from glt_lightning.graph import BatchArrays
from glt_lightning.graph.placement import Need, place
from tests.helpers.partitions import partitioned, small_hetero

GRAPH, ROWS = 1000, 4000


def placed(topology="auto", features="auto", free=None, lists=None, rows=None, on_disk=False):
    budgets = GpuBudgets(topology=lists, features=rows)
    need = Need(topology=GRAPH, features=ROWS, features_on_disk=on_disk)
    found = place(topology, features, need, budgets, free)
    return found.topology, found.topology_bytes, found.features, found.features_bytes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("device", 1000, "device", 4000)),  # nobody knows what is free
        ({"free": 100_000}, ("device", 1000, "device", 4000)),
        ({"free": 9000}, ("device", 1000, "device", 4000)),  # half of 9000, then half of 8000
        ({"free": 8998}, ("device", 1000, "hybrid", 3999)),
        ({"free": 2000}, ("device", 1000, "hybrid", 500)),
        ({"free": 1998}, ("hybrid", 999, "hybrid", 499)),
        ({"free": 1998, "lists": 100}, ("hybrid", 100, "hybrid", 949)),
        ({"free": 1500, "lists": 1200}, ("device", 1000, "hybrid", 250)),  # room for all of it
        ({"free": 100_000, "lists": 100}, ("hybrid", 100, "device", 4000)),
        ({"free": 100_000, "rows": 100}, ("device", 1000, "hybrid", 100)),
        ({"rows": 100}, ("device", 1000, "hybrid", 100)),
        ({"free": 100_000, "rows": 10_000}, ("device", 1000, "device", 4000)),
        ({"free": 100_000, "on_disk": True}, ("device", 1000, "cpu", 0)),
        ({"free": 100_000, "on_disk": True, "rows": 100}, ("device", 1000, "cpu", 0)),
        ({"topology": "uva", "free": 9000}, ("uva", 0, "device", 4000)),
        ({"topology": "uva", "features": "uva", "free": 0}, ("uva", 0, "uva", 0)),
        ({"topology": "hybrid", "features": "hybrid", "free": 1600}, ("hybrid", 800, "hybrid", 400)),
        ({"topology": "hybrid", "features": "hybrid", "lists": 10, "rows": 20}, ("hybrid", 10, "hybrid", 20)),
        ({"topology": "device", "features": "cpu", "free": 1000}, ("device", 1000, "cpu", 0)),
        ({"topology": "device", "features": "device", "free": 5000}, ("device", 1000, "device", 4000)),
    ],
)
def test_what_the_options_mean(given, expected):
    assert placed(**given) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"topology": "device", "free": 999},
            r"sampling.topology: 'device' takes 1,000 bytes.* 999 are free. Choose hybrid",
        ),
        (
            {"topology": "hybrid", "lists": 900, "free": 800},
            "takes 900 bytes.* 800 are free. Lower sampling.topology_bytes",
        ),
        (
            {"topology": "hybrid", "lists": 5000, "free": 800},
            "sampling.topology: 'hybrid' takes 1,000 bytes.* 800 are free. Lower sampling.topology_bytes",
        ),
        (
            {"features": "device", "free": 4999},
            "sampling.features: 'device' takes 4,000 bytes.* 3,999 are free. Choose hybrid",
        ),
        (
            {"rows": 3000, "free": 3500},
            "sampling.features: 'hybrid' takes 3,000 bytes.* 2,500 are free. Lower sampling.feature_bytes.",
        ),
        ({"topology": "cpu"}, "sampling.topology: a GPU samples from auto, device, uva, hybrid; got 'cpu'"),
        ({"features": "disk"}, "sampling.features: .*, cpu; got 'disk'"),
        ({"features": "uva", "on_disk": True}, "'uva' with cache.memory.* Choose cpu"),
    ],
)
def test_what_does_not_fit_is_said(given, said):
    with pytest.raises(OptionError, match=said):
        placed(**given)


def test_bytes_of_the_files(tmp_path):
    partition = partitioned(small_hetero(), tmp_path, 2)
    files = {path: (partition.directory / path).stat().st_size - 4096 for path in partition.manifest.arrays}

    def total(*names):
        return sum(size for path, size in files.items() if path.startswith("part") and path.split("/")[-1] in names)

    need = BatchArrays(partition).need
    assert need == Need(
        topology=total("n_id.npy", "indptr.npy", "indices.npy"), features=total("x.npy", "y.npy", "edge_ids.npy")
    )
    assert BatchArrays(partition, False).need.features == total("x.npy", "y.npy")
