"""The sampler of examples/samplers/induced.py gives the same batch whole and in parts, and it is the induced subgraph."""

from pathlib import Path
from runpy import run_path

import numpy as np
import pytest

from glt_lightning.base import OptionError
from glt_lightning.sampling import BatchRequest, KHopSampler, SamplerConfig, neighbor_source
from tests.helpers.owners import split_up
from tests.helpers.partitions import partitioned, small_graph, small_hetero

EXAMPLE = Path(__file__).parents[2] / "examples/samplers/induced.py"


@pytest.fixture(scope="module")
def induced():
    return run_path(str(EXAMPLE))["induced"]


def batches(induced, partition, config, seeds, **where):
    source = neighbor_source(partition, config, **where)
    for number in range(2):
        chosen = np.ascontiguousarray(seeds[number * 7 : number * 7 + 8])
        draft = induced(BatchRequest(number, 99 + number, chosen, np.arange(8)), source)
        yield {name: array.copy() for name, array in draft.values().items()}, draft.counters


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("with_edge", [False, True])
def test_whole_and_in_parts(tmp_path, induced, make, with_edge):
    whole = partitioned(make(), tmp_path, 3)
    here, remote = split_up(whole, [[1], [0], [2]])
    seeds, edge_types = whole.split("train"), len(whole.schema.edge_types)
    config = SamplerConfig(seeds.node_type, ((3,) * edge_types, (2,) * edge_types), with_edge=with_edge)
    far = batches(induced, here, config, seeds.gids, remote=remote)
    for (expected, counted), (found, counters) in zip(batches(induced, whole, config, seeds.gids), far, strict=True):
        assert expected.keys() == found.keys()
        for name in expected:
            np.testing.assert_array_equal(expected[name], found[name], err_msg=name)
        assert counters.rows == counted.rows
        assert counters.remote_rows > 0


def test_all_edges_among_the_nodes(tmp_path, induced):
    data = small_graph()
    whole = partitioned(data, tmp_path, 2)
    config = SamplerConfig(0, ((3,), (2,)), with_edge=True)
    columns = list(enumerate(zip(*data.edge_index.tolist(), strict=True)))
    for batch, _ in batches(induced, whole, config, whole.split("train").gids):
        n_id = batch["node/0/n_id"].tolist()
        src, dst = ([n_id[lid] for lid in lids] for lids in batch["edge/0/edge_index"].tolist())
        found = sorted(zip(batch["edge/0/e_id"].tolist(), zip(src, dst, strict=True), strict=True))
        assert found == [(i, ends) for i, ends in columns if set(ends) <= set(n_id)]
        np.testing.assert_array_equal(batch["node/0/x"], data.x[n_id].numpy())


def test_of_the_seeds_alone(tmp_path, induced):
    """A tree without hops: the edges among the seeds."""
    whole = partitioned(small_graph(), tmp_path, 2)
    for batch, _ in batches(induced, whole, SamplerConfig(0, ()), whole.split("train").gids):
        assert batch["num_sampled_nodes"].tolist() == [[8]]
        assert batch["num_sampled_edges"].tolist() == [[batch["edge/0/edge_index"].shape[1]]]


def test_a_gpu_makes_whole_batches(tmp_path):
    """Rows that the trainer's device has are left out by the CPU alone."""
    whole = partitioned(small_graph(), tmp_path, 1)
    with pytest.raises(OptionError, match="on_device and store exclude each other"):
        neighbor_source(whole, SamplerConfig(0, ((3,),)), store=object(), on_device=object())


def test_the_loop_gives_what_one_native_call_gives(tmp_path):
    """A source of mapped parts alone, hop by hop."""
    whole = partitioned(small_hetero(), tmp_path, 2)
    seeds = whole.split("train")
    config = SamplerConfig(seeds.node_type, ((3, -1), (0, 2)), with_edge=True)
    request = BatchRequest(0, 7, seeds.gids[:9].copy(), np.arange(9))
    native, stepped = KHopSampler(whole, config), KHopSampler(whole, config)
    stepped.source.khop = lambda *_: None
    expected, found = native.draft(request), stepped.draft(request)
    assert [f.name for f in expected.fields] == [f.name for f in found.fields]
    assert found.counters.rows == expected.counters.rows
    expected, found = expected.values(), found.values()
    for name in expected:
        np.testing.assert_array_equal(expected[name], found[name], err_msg=name)
