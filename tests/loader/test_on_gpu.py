"""Batches that a GPU makes are those of the CPU. The emulated kernels stand in for the GPU."""

from __future__ import annotations

import logging
import threading
import weakref

import numpy as np
import pytest
import torch

from glt_lightning.base import CacheOptions, NativeError, OptionError, SamplerError, SamplingOptions
from glt_lightning.kernels import Kernels
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers.producer import on_gpu
from glt_lightning.workers.producer.on_gpu import DeviceProducer
from glt_lightning.workers.server.served import _log_without_effect
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.servers import Produced
from tests.loader.test_stored_attributes import every_dtype

CONFIG = SamplerConfig(seed_type=0, fanouts=((2,),))
TRAIN = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=16, shuffle=True)


@pytest.fixture
def gpu(kernels, monkeypatch):
    """The CPU counts as a GPU."""
    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    return kernels


def batches(graph, spec=TRAIN, cache=None, **sampling):
    with Session(graph, SamplingOptions(**sampling), seed=7, cache=cache) as context:
        loader = context.make_loader(spec)
        found = [contents(batch) for epoch in range(2) for batch in loader]
        return found, loader.stats(), type(context._producer).__name__


def same_as_the_cpu(graph, spec=TRAIN, cache=None, **sampling):
    expected, plain, inline = batches(graph, spec, cache, **(sampling | {"topology": "cpu", "features": "auto"}))
    found, stats, producer = batches(graph, spec, cache, **sampling)
    assert (inline, producer) == ("InlineProducer", "DeviceProducer")
    assert found == expected
    assert (stats.nodes, stats.edges, stats.deduplicated) == (plain.nodes, plain.edges, plain.deduplicated)
    assert stats.counters.local_rows == plain.counters.local_rows
    assert stats.counters.local_bytes == plain.counters.local_bytes
    assert stats.counters.frontier_rows == plain.counters.frontier_rows


@pytest.mark.diagonal
@pytest.mark.parametrize("features", ["device", "cpu"])
@pytest.mark.parametrize("make", [small_graph, small_hetero, every_dtype])
@pytest.mark.parametrize("parts", [1, 3])
def test_same_batches(tmp_path, gpu, make, parts, features):
    graph = partitioned(make(), tmp_path, parts)
    same_as_the_cpu(graph, features=features)
    same_as_the_cpu(graph, features=features, with_edge=True, replace=True, prefetch=5)


@pytest.mark.diagonal
@pytest.mark.parametrize("features", ["device", "hybrid", "cpu"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8"])
def test_handed_over_as_stored(tmp_path, gpu, kind, features):
    graph = partitioned(small_graph(), tmp_path, 2, storage={"x": kind, "edge_attr": kind})
    budget = 1000 if features == "hybrid" else None
    same_as_the_cpu(graph, features=features, feature_bytes=budget, feature_dtype="stored")


def test_all_neighbors(tmp_path, gpu):
    spec = LoaderSpec(name="all", num_neighbors=[-1, 2], batch_size=50, exact=True)
    same_as_the_cpu(partitioned(small_graph(), tmp_path, 2), spec)


def test_rows_on_disk_are_read_by_the_cpu(tmp_path, gpu):
    same_as_the_cpu(partitioned(small_graph(), tmp_path, 2), cache=CacheOptions(memory=500))


def test_an_epoch_may_be_left_early_and_resumed(tmp_path, gpu):
    with Session(partitioned(small_graph(), tmp_path, 2), SamplingOptions(prefetch=3), seed=7) as context:
        loader = context.make_loader(TRAIN)
        whole = [contents(batch) for batch in loader]
        loader.set_epoch(0)
        seen = []
        for batch in loader:
            seen.append(contents(batch))
            if len(seen) == 2:
                state = loader.state_dict()
                break
        other = context.make_loader(TRAIN)
        other.load_state_dict(state)
        assert seen + [contents(batch) for batch in other] == whole


def test_several_loaders_at_once(tmp_path, gpu):
    with Session(partitioned(small_graph(), tmp_path, 2), SamplingOptions(), seed=7) as context:
        alone = [contents(batch) for batch in context.make_loader(TRAIN)]
        first, second = context.make_loader(TRAIN), context.make_loader(TRAIN)
        assert [(contents(a), contents(b)) for a, b in zip(first, second, strict=True)] == [(d, d) for d in alone]


def test_threads_end_with_the_context(tmp_path, gpu):
    context = Session(partitioned(small_graph(), tmp_path, 2), SamplingOptions(), seed=7)
    loader = iter(context.make_loader(TRAIN))
    next(loader)
    assert [t for t in threading.enumerate() if t.name.startswith("glt-cpu")]
    context.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("glt-cpu")]
    with pytest.raises(Exception, match="closed"):
        next(loader)
    context.close()


def test_an_error_of_a_sampler_reaches_the_loop(tmp_path, gpu):
    class Broken:
        def draft(self, request):
            raise ValueError(f"no batch {request.number}")

    producer = DeviceProducer(torch.device("cpu"), lambda config: Broken(), prefetch=1)
    with (
        Session(Produced(partitioned(small_graph(), tmp_path, 1), lambda pin: producer), seed=7) as context,
        pytest.raises(ValueError, match="no batch 0"),
    ):
        next(iter(context.make_loader(TRAIN)))


def test_a_batch_that_takes_too_long_is_named(tmp_path, gpu):
    end = threading.Event()

    class Slow:
        def draft(self, request):
            end.wait(30)

    producer = DeviceProducer(torch.device("cpu"), lambda config: Slow(), prefetch=1, timeout_s=0.05)
    with Session(Produced(partitioned(small_graph(), tmp_path, 1), lambda pin: producer), seed=7) as context:
        with pytest.raises(SamplerError, match=r"batch 0 was not made within 0.05 s \(sampling.timeout_s\)"):
            next(iter(context.make_loader(TRAIN)))
        end.set()


def test_closing_does_not_wait_for_ever(monkeypatch, caplog):
    """Nor is memory given back that a thread may still read."""
    begun, end, freed = threading.Event(), threading.Event(), []

    class Hanging:
        def draft(self, request):
            begun.set()
            end.wait(30)

    monkeypatch.setattr("glt_lightning.workers.producer.on_gpu._CLOSE_S", 0.05)
    hanging = DeviceProducer(
        torch.device("cpu"), lambda config: Hanging(), prefetch=1, timeout_s=0.05, release=lambda: freed.append(1)
    )
    with pytest.raises(SamplerError, match="not made within"):
        next(hanging.stream(CONFIG, iter([BatchRequest(0, 0, np.arange(2), np.arange(2))])))
    assert begun.wait(10)
    hanging.close()
    assert "cpu is still making a batch after 0.05 s" in caplog.text
    assert not freed
    end.set()


def test_worker_devices_of_a_trainer_without_a_graph(caplog):
    options = SamplingOptions(num_workers=1, concurrency=5, prefetch=7, worker_devices=["cuda:0"])
    with caplog.at_level(logging.INFO, "glt_lightning"):
        _log_without_effect(SamplingOptions(num_threads=2, channel_size="1GB"))
        assert not caplog.text
        _log_without_effect(options)
    assert (
        "sampling.prefetch has no effect: servers make the batches. Remove it, or set cluster.prefetch." in caplog.text
    )
    assert {each.levelname for each in caplog.records if "no effect" in each.getMessage()} == {"WARNING"}


def test_batches_made_ahead_are_freed_when_an_epoch_is_left():
    """They take memory of the device, and no further epoch may come."""
    made = []

    class Array:
        """A value with weak references."""

    class Draft:
        counters = None

        def values(self):
            array = Array()
            made.append(weakref.ref(array))
            return {"x": array}

    class Sampler:
        def draft(self, request):
            return Draft()

    producer = DeviceProducer(torch.device("cpu"), lambda config: Sampler(), prefetch=2)
    requests = (BatchRequest(number, 0, np.arange(2), np.arange(2)) for number in range(9))
    stream = producer.stream(CONFIG, requests)
    next(stream)
    producer._threads.submit(int).result(10)  # behind all that was requested
    assert len(made) == 3
    stream.close()
    assert [each() for each in made] == [None] * 3
    producer.close()


def test_memory_is_freed_after_the_threads_have_ended(tmp_path):
    order = []
    producer = DeviceProducer(
        torch.device("cpu"), lambda config: None, prefetch=1, release=lambda: order.append("freed")
    )
    producer.close()
    producer.close()
    assert order == ["freed"]


# --- who samples


def test_the_cpu_samples_where_it_is_told_to(tmp_path, gpu, caplog):
    graph = partitioned(small_graph(), tmp_path, 1)
    with caplog.at_level(logging.INFO, "glt_lightning"):
        assert batches(graph, topology="cpu")[2] == "InlineProducer"
        assert not caplog.text
        assert batches(graph, num_workers=1)[2] == "SubprocessProducer"
    assert "the CPU samples, in 1 processes; with sampling.num_workers 0 the GPU does." in caplog.text


def test_a_budget_without_use_is_said(tmp_path, gpu, caplog):
    graph = partitioned(small_graph(), tmp_path, 1)
    with caplog.at_level(logging.INFO, "glt_lightning"):
        batches(graph, feature_bytes=500, features="cpu")
        assert "sampling.feature_bytes has no effect with sampling.features: cpu." in caplog.text
        assert {each.levelname for each in caplog.records if "no effect" in each.message} == {"WARNING"}
        caplog.clear()
        batches(graph, feature_bytes=500, topology_bytes=500)
        assert "no effect" not in caplog.text
        with pytest.warns(
            FutureWarning, match="cache.device: a GPU samples, and its budget is now called sampling.feature_b"
        ):
            batches(graph, cache=CacheOptions(device=500))


def test_no_gpu_no_effect(tmp_path, caplog):
    graph = partitioned(small_graph(), tmp_path, 1)
    with caplog.at_level(logging.INFO, "glt_lightning"):
        assert batches(graph)[2] == "InlineProducer"
        assert not caplog.text
        assert batches(graph, topology="uva")[2] == "InlineProducer"
        assert "sampling: training on cpu, so these options have no effect: topology uva." in caplog.text
        assert batches(graph, topology="hybrid", features="uva")[2] == "InlineProducer"
        assert batches(graph, topology_bytes=9, feature_bytes=8, prefetch=7)[2] == "InlineProducer"
        assert batches(graph, topology="cpu", feature_bytes=8)[2] == "InlineProducer"
    assert "training on cpu, so these options have no effect: topology hybrid, features uva." in caplog.text
    assert (
        "training on cpu, so these options have no effect: topology_bytes 9, feature_bytes 8, prefetch 7."
        in caplog.text
    )
    assert "topology is cpu, so these options have no effect: feature_bytes 8." in caplog.text
    assert {each.levelname for each in caplog.records if "no effect" in each.getMessage()} == {"WARNING"}


def test_a_gpu_that_cannot_is_said(tmp_path, monkeypatch, caplog):
    def refuse(device):
        raise NativeError("the driver is too old.")

    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", refuse)
    graph = partitioned(small_graph(), tmp_path, 1)
    with caplog.at_level(logging.INFO, "glt_lightning"):
        assert batches(graph)[2] == "InlineProducer"
    assert "sampling on the CPU, because the GPU of rank 0 cannot: the driver is too old." in caplog.text
    with pytest.raises(NativeError, match="too old"):
        batches(graph, topology="device")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topology": "gpu"}, "sampling.topology: expected auto, cpu, device, uva, hybrid"),
        ({"features": "disk"}, "sampling.features: expected"),
        ({"topology": "uva", "num_workers": 2}, "set sampling.worker_devices for GPUs"),
        ({"features": "uva", "num_workers": 2}, "set sampling.worker_devices for GPUs"),
        ({"features": "device", "topology": "cpu"}, "sampling.features: 'device' has no meaning with topology cpu"),
        ({"prefetch": 0}, "sampling.prefetch"),
        ({"worker_devices": ["cuda:0"]}, "set sampling.num_workers"),
        ({"worker_devices": ["gpu0"], "num_workers": 1}, "expected devices such as cuda:0, got 'gpu0'"),
    ],
)
def test_options_that_contradict_each_other(options, said):
    with pytest.raises(OptionError, match=said):
        SamplingOptions(**options)


@pytest.mark.parametrize("topology", ["device", "hybrid"])
def test_the_gpu_walks(tmp_path, gpu, topology):
    """Neighbours by walks: those of the CPU, in trees of their own, too; the graph's edges need not have attributes there."""
    walks = {"importance_neighbors": {"walks": 5, "restart": 0.3}, "topology": topology}
    walks["topology_bytes"] = 1000 if topology == "hybrid" else None
    graph = partitioned(small_graph(), tmp_path, 3)
    for disjoint in (False, True):
        spec = LoaderSpec(
            name="t", split="train", num_neighbors=[3, -1], batch_size=16, shuffle=True, disjoint=disjoint
        )
        same_as_the_cpu(graph, spec, **walks)
