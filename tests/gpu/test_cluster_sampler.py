"""A device that has some parts of a graph, and asks owners for the others, against the CPU."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
import torch

from glt_lightning.base import EDGE, CacheOptions
from glt_lightning.kernels.cuda import stream as cuda_stream
from glt_lightning.sampling import ImportanceTask, KHopSampler
from tests.helpers.device_parts import PartsCase, assert_same, sampled, written
from tests.helpers.owners import make_cache
from tests.helpers.partitions import small_graph, small_hetero
from tests.helpers.subgraph_cases import check_far_further_edges, check_further_edges
from tests.helpers.wide import wide_graph

pytestmark = pytest.mark.gpu


@pytest.fixture
def open_case(kernels, tmp_path):
    with ExitStack() as opened:
        yield lambda *args, **kwargs: opened.enter_context(closing(PartsCase(kernels, tmp_path, *args, **kwargs)))


@pytest.mark.parametrize("make", [small_graph, small_hetero, wide_graph])
@pytest.mark.parametrize("memory", [("device", "device"), ("uva", "uva"), ("hybrid", "hybrid"), ("device", "cpu")])
def test_same_batch(open_case, make, memory):
    case = open_case(make(), [[1], [0], [2]], memory)
    for fanouts in ([4, 3], [2, -1, 3]):
        case.check(case.config(*fanouts, with_edge=True))


@pytest.mark.parametrize("disjoint", [False, True])
def test_neighbours_by_walks(open_case, disjoint):
    task = ImportanceTask(edge_types=(EDGE,), metapaths=((0,),), walks=8, length=3, restart=1 << 30)
    case = open_case(small_graph(), [[1], [0], [2]])
    case.check(case.config(4, -1, disjoint=disjoint).by_walks(task))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8"])
def test_encoded_attributes_and_what_is_kept(open_case, kind):
    case = open_case(small_graph(), [[0], [1]], storage={"x": kind, "edge_attr": kind})
    options = CacheOptions(bytes=1 << 20, topology=10_000)
    with ExitStack() as opened:
        kept = tuple(opened.enter_context(closing(make_cache(case.here, case.remote, options))) for _ in range(2))
        case.check(case.config(4, 3, with_edge=True), kept=kept)


def test_one_wait_a_hop(open_case, monkeypatch):
    """torch raises at every wait that it makes, our kernels make none, and an event is waited for in one place."""
    case = open_case(small_graph(), [[0], [1]])
    sampler, (first, second) = case.sampler(case.config(4, 3, with_edge=True)), case.requests()
    sampled(sampler, first)
    waits, wait = [], cuda_stream.HostCopy.wait
    monkeypatch.setattr(cuda_stream.HostCopy, "wait", lambda self: waits.append(self) or wait(self))
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampled(sampler, second)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 2


def test_several_threads_and_streams(open_case, kernels):
    case = open_case(small_hetero(), [[0], [1], [2]])
    config, own = case.config(4, 3, with_edge=True), threading.local()
    requests, whole = list(case.requests(5)), KHopSampler(case.whole, config)
    expected = {r.number: {k: v.copy() for k, v in written(whole.draft(r)).items()} for r in requests}
    torch.cuda.synchronize(kernels.device)

    def make(request):
        if not hasattr(own, "sampler"):
            own.stream, own.sampler = torch.cuda.Stream(kernels.device), case.sampler(config)
        with torch.cuda.stream(own.stream):
            sample = sampled(own.sampler, request)
        own.stream.synchronize()
        return sample

    with ThreadPoolExecutor(3) as threads:
        for sample in threads.map(make, requests * 8):
            assert_same(sample, expected[sample.number])


@pytest.mark.parametrize("seed", range(24))
def test_further_edges(kernels, tmp_path, seed):
    check_further_edges(kernels, tmp_path, seed)


@pytest.mark.parametrize("first", [2**31 - 25, 2**32 - 25, 2**40])
def test_further_edges_of_far_ids(kernels, first):
    check_far_further_edges(kernels, first)
