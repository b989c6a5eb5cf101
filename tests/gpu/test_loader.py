"""Batches that a GPU makes are those of the CPU, wherever graph and attributes lie, and whatever the GPU does meanwhile."""

import gc
import threading
import warnings

import pytest
import torch

from glt_lightning.base import SamplingOptions
from glt_lightning.kernels import wait_for
from glt_lightning.loader import LoaderSpec, Session
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.loader.test_stored_attributes import every_dtype

pytestmark = pytest.mark.gpu

TRAIN = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=16, shuffle=True)
LARGE = LoaderSpec(name="train", split="train", num_neighbors=[10, 5], batch_size=100, shuffle=True)
PLACES = [
    ("device", "device"),
    ("device", "cpu"),
    ("device", "uva"),
    ("uva", "uva"),
    ("uva", "cpu"),
    ("hybrid", "device"),
    ("hybrid", "hybrid"),
    ("auto", "auto"),
]


def open_context(graph, device, topology="device", features="device", **options):
    """hybrid: a part of the rows is on the device."""
    budgets = {"topology_bytes": 2000, "feature_bytes": 2000} if "hybrid" in (topology, features) else {}
    sampling = SamplingOptions(topology=topology, features=features, **budgets, **options)
    return Session(graph, sampling, seed=7, device=device)


def of_the_cpu(graph, spec, epochs=1, **options):
    with Session(graph, SamplingOptions(topology="cpu", **options), seed=7) as context:
        loader = context.make_loader(spec)
        return [contents(batch) for _ in range(epochs) for batch in loader]


def to_host(batch):
    return contents(batch.to("cpu"))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return partitioned(small_graph(6000), tmp_path_factory.mktemp("large"), 2)


def lagging(device):
    """Some milliseconds of work for the current stream, without a wait."""
    busy = torch.ones(2048, 2048, device=device)
    for _ in range(20):
        busy = (busy @ busy).clamp(max=1.0)
    return busy


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("topology", ["device", "uva", "hybrid"])
def test_neighbours_by_walks_are_those_of_the_cpu(kernels, tmp_path, topology, disjoint):
    graph, walks = partitioned(small_graph(), tmp_path, 3), {"importance_neighbors": {"walks": 9, "restart": 0.3}}
    spec = LoaderSpec(name="train", split="train", num_neighbors=[4, -1], batch_size=16, disjoint=disjoint)
    expected = of_the_cpu(graph, spec, **walks)
    with open_context(graph, kernels.device, topology, **walks) as context:
        assert type(context._producer).__name__ == "DeviceProducer"
        assert [to_host(batch) for batch in context.make_loader(spec)] == expected


@pytest.mark.parametrize(("topology", "features"), PLACES)
@pytest.mark.parametrize("make", [small_graph, small_hetero, every_dtype])
def test_batches_are_those_of_the_cpu(kernels, tmp_path, make, topology, features):
    graph = partitioned(make(), tmp_path, 3)
    for options in ({}, {"with_edge": True, "replace": True, "prefetch": 5}):
        expected = of_the_cpu(graph, TRAIN, epochs=2, **options)
        with open_context(graph, kernels.device, topology, features, **options) as context:
            assert type(context._producer).__name__ == "DeviceProducer"
            loader, found = context.make_loader(TRAIN), []
            for _ in range(2):
                for batch in loader:
                    tensors = [value for store in batch.stores for value in store.values() if torch.is_tensor(value)]
                    assert {tensor.device for tensor in tensors} == {kernels.device}
                    found.append(to_host(batch))
        assert found == expected


@pytest.mark.parametrize("encoding", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("features", ["device", "uva", "hybrid", "cpu"])
def test_attributes_in_fewer_bytes(kernels, tmp_path, encoding, features):
    graph = partitioned(small_graph(), tmp_path, 2, storage={"x": encoding})
    with open_context(graph, kernels.device, features=features) as context:
        assert [to_host(batch) for batch in context.make_loader(TRAIN)] == of_the_cpu(graph, TRAIN)


@pytest.mark.parametrize(("topology", "features"), [("device", "device"), ("uva", "uva"), ("device", "cpu")])
@pytest.mark.parametrize("prefetch", [1, 4])
def test_kept_batches_stay_what_they_are(kernels, large, topology, features, prefetch):
    with open_context(large, kernels.device, topology, features, prefetch=prefetch) as context:
        kept, busy = [], []
        for batch in context.make_loader(LARGE):
            busy.append(lagging(kernels.device))
            kept.append(batch)
        wait_for(kernels.device)
        assert [to_host(batch) for batch in kept] == of_the_cpu(large, LARGE)


def checksums(batch):
    """int64 [4], on the batch's device; bits of attributes, and the order of nodes and edges count."""
    n, e = (torch.arange(k, device=batch.n_id.device) for k in (batch.num_nodes, batch.edge_index.shape[1]))
    bits = batch.x.view(torch.int32).long()
    sums = [(batch.n_id * n).sum(), (batch.edge_index * (e + 1)).sum(), (bits.sum(1) * n).sum(), (batch.y * n).sum()]
    return torch.stack(sums)


@pytest.mark.parametrize(("topology", "features"), [("device", "device"), ("uva", "uva"), ("device", "cpu")])
def test_memory_is_not_used_again_before_its_last_use(kernels, large, topology, features):
    """Each batch is dropped while the stream that reads it is far behind, and the sampler goes on."""
    with Session(large, SamplingOptions(topology="cpu"), seed=7) as context:
        expected = [checksums(batch) for batch in context.make_loader(LARGE)]
    with open_context(large, kernels.device, topology, features, prefetch=4) as context:
        found = []
        for batch in context.make_loader(LARGE):
            lagging(kernels.device)
            found.append(checksums(batch))
            del batch
        assert torch.equal(torch.stack(found).cpu(), torch.stack(expected))


def test_memory_is_flat(kernels, large):
    """After an epoch the allocator has all it needs."""
    with open_context(large, kernels.device) as context:
        loader, taken = context.make_loader(LARGE), []
        for _ in range(4):
            for batch in loader:
                del batch
            wait_for(kernels.device)
            taken.append(torch.cuda.memory_reserved(kernels.device))
    assert taken[-1] <= 1.1 * taken[1]


def test_memory_is_given_back(kernels, large):
    before = torch.cuda.memory_allocated(kernels.device)
    for topology in ("device", "uva", "hybrid"):
        with open_context(large, kernels.device, topology, topology) as context:
            assert torch.cuda.memory_allocated(kernels.device) > before or topology == "uva"
            next(iter(context.make_loader(LARGE)))
        gc.collect()
        assert torch.cuda.memory_allocated(kernels.device) == before


def test_the_training_thread_never_waits_for_the_device(kernels, large):
    """torch says who waits. It says so of all threads, and the sampler's may, so that a warning is noted with its thread."""
    waited = []

    def note(message, *_, **__):
        if "synchroniz" in str(message):
            waited.append(threading.current_thread())

    with open_context(large, kernels.device) as context, warnings.catch_warnings():
        stream = iter(context.make_loader(LARGE))
        next(stream)
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for batch in stream:
                checksums(batch)
                del batch
            assert threading.current_thread() not in waited
            torch.ones(1, device=kernels.device).item()
            assert threading.current_thread() in waited, "torch no longer says who waits"
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_two_contexts_at_once(kernels, large):
    expected = of_the_cpu(large, LARGE)
    with open_context(large, kernels.device) as one, open_context(large, kernels.device, "uva", "uva") as other:
        pairs = zip(one.make_loader(LARGE), other.make_loader(LARGE), strict=True)
        assert [(to_host(a), to_host(b)) for a, b in pairs] == [(d, d) for d in expected]


@pytest.mark.parametrize(("topology", "features"), [("device", "device"), ("uva", "uva"), ("device", "cpu")])
def test_sampler_processes_with_a_gpu(kernels, large, topology, features):
    """Their batches come through the host's memory, and are those of the CPU."""
    options = SamplingOptions(num_workers=2, worker_devices=["cuda:0"], topology=topology, features=features)
    with Session(large, options, seed=7, device=kernels.device) as context:
        assert [to_host(batch) for batch in context.make_loader(LARGE)] == of_the_cpu(large, LARGE)
