"""GPUs of ranks that map different parts, and of sampler processes, make the batches of CPUs. The emulated kernels stand
in for the GPUs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from glt_lightning.base import (
    CacheOptions,
    NativeError,
    OptionError,
    PeerError,
    SamplerError,
    SamplingOptions,
)
from glt_lightning.graph import LocalPartition, device_store
from glt_lightning.kernels import Kernels
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.sampling import BatchRequest, DeviceSource, KHopSampler, SamplerConfig
from glt_lightning.workers import HostsGraph, Ranks, ServerPlan
from glt_lightning.workers.producer import on_gpu
from glt_lightning.workers.producer.group import SamplerGpus
from glt_lightning.workers.producer.samplers import Samplers, SamplerSource
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.temporal import partitioned_by_time, shop
from tests.loader.test_stored_attributes import every_dtype
from tests.workers.test_group import SPEC, contents_of, link

CONFIG = SamplerConfig(seed_type=0, fanouts=((3,), (2,)), with_edge=True)


@pytest.fixture
def gpu(kernels, monkeypatch):
    """The CPU counts as a GPU."""
    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)


# --- ranks


@pytest.mark.diagonal
@pytest.mark.parametrize("cache", [{}, {"ratio": 0.2}, {"bytes": 4000}, {"device": 1000}])
@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_ranks_that_map_different_parts(tmp_path, gpu, make, cache):
    whole, count = partitioned(make(), tmp_path, 4, undirected=True), 2
    options = SamplingOptions(with_edge=True, concurrency=3, prefetch=3)
    every = LoaderSpec(name="all", num_neighbors=[3, -1], batch_size=64, exact=True, node_type=target(make))
    specs = [SPEC, every, LoaderSpec(**vars(SPEC) | {"name": "trees", "disjoint": True})]

    def remote(rank, exchange):
        parts = [p for p in range(4) if p % count == rank]
        graph = HostsGraph(LocalPartition.open(whole.directory, parts=parts), link(rank), "127.0.0.1")
        context = Session(graph, options, seed=3, ranks=Ranks(rank, count, exchange), cache=CacheOptions(**cache))
        with context:
            assert type(context._producer).__name__ == "DeviceProducer"
            found = contents_of(context, specs)
            exchange("all done")
            return found

    found = run_ranks(count, remote)
    on_cpu = SamplingOptions(with_edge=True, topology="cpu")
    for rank in range(count):
        with Session(whole, on_cpu, seed=3, ranks=Ranks(rank, count)) as context:
            assert found[rank] == contents_of(context, specs)


def target(make):
    return "author" if make is small_hetero else None


def test_one_rank_without_a_gpu_takes_all_to_the_cpu(tmp_path, gpu, kernels, monkeypatch, caplog):
    """Or else the others would wait for it where they agree on what they share."""

    def open_one(device):
        if device.index == 1:
            raise NativeError("no such GPU.")
        return kernels

    monkeypatch.setattr(Kernels, "open", open_one)
    whole = partitioned(small_graph(), tmp_path, 2)

    def run(rank, exchange, **sampling):
        options, device = SamplingOptions(**sampling), torch.device("cpu", rank)
        with Session(whole, options, seed=3, ranks=Ranks(rank, 2, exchange), device=device) as context:
            return type(context._producer).__name__

    assert run_ranks(2, run) == ["InlineProducer"] * 2
    assert "because the GPU of rank 1 cannot: no such GPU." in caplog.text

    def refused(rank, exchange):
        with pytest.raises(NativeError, match=r"rank 1: no such GPU\."):
            run(rank, exchange, topology="device")

    run_ranks(2, refused)


@pytest.mark.parametrize("step", ["place", "_lists_on_device"])
def test_what_one_rank_has_no_memory_for_ends_all(tmp_path, gpu, monkeypatch, step):
    """Or else the others would wait for it."""
    whole, make = partitioned(small_graph(), tmp_path, 2), getattr(device_store, step)

    def on_rank_0(*given):
        if threading.current_thread().name == "rank 0":
            raise OptionError("too little memory.")
        return make(*given)

    monkeypatch.setattr(device_store, step, on_rank_0)

    def run(rank, exchange):
        threading.current_thread().name = f"rank {rank}"
        kind, said = (OptionError, "^too little") if rank == 0 else (PeerError, "^rank 0: too little")
        with pytest.raises(kind, match=said):
            Session(whole, SamplingOptions(topology="uva"), seed=3, ranks=Ranks(rank, 2, exchange))

    run_ranks(2, run)
    assert not memory_files()


# --- sampler processes


def gpus(topology="device", features="device", memory=None, **budgets):
    sampling = SamplingOptions(topology=topology, features=features, **budgets)
    return DeviceSource.of(["cuda:0", "cuda:1"], sampling, CacheOptions(memory=memory), edges=True)


@pytest.mark.parametrize("memory", ["device", "uva", "hybrid"])
@pytest.mark.parametrize("make", [small_graph, every_dtype])
def test_drafts_are_those_of_the_cpu(tmp_path, gpu, make, memory):
    partition = partitioned(make(), tmp_path, 2)
    here = SamplerGpus(partition, gpus(memory, memory, feature_bytes=3000, topology_bytes=2000), Ranks())
    source = SamplerSource.from_json(SamplerSource.of(partition, gpus=here.source).to_json())
    samplers = Samplers(source, 1)
    try:
        mine, theirs = samplers.make(CONFIG), KHopSampler(partition, CONFIG)
        for number in range(4):
            seeds = np.arange(number, number + 9)
            request = BatchRequest(number, 77 + number, seeds, seeds + 5)
            found, expected = (written(sampler.draft(request)) for sampler in (mine, theirs))
            assert found.keys() == expected.keys()
            for name, array in expected.items():
                assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
                assert found[name].tobytes() == array.tobytes(), name
    finally:
        samplers.close()
        here.close()


def written(draft):
    return draft.write(np.empty(draft.nbytes, dtype=np.uint8))


OF_SERVER = {"num_workers": 1, "worker_devices": ["cuda:0"]}


def drafts_by_gpus(partition, sampling, configs):
    """Of each config the draft of a graph server's GPU whose options are ``sampling``, and that of the CPU."""
    here = SamplerGpus(
        partition,
        ServerPlan.sampling_gpus(str(partition.directory), replace(sampling, **OF_SERVER), CacheOptions()),
        Ranks(),
    )
    samplers = Samplers(SamplerSource.of(partition, gpus=here.source), 0)
    request = BatchRequest(0, 77, np.arange(9), np.arange(9))
    try:
        for config in configs:
            both = samplers.make(config), KHopSampler(partition, config)
            yield [{k: v.tolist() for k, v in written(each.draft(request)).items()} for each in both]
    finally:
        samplers.close()
        here.close()


def test_gpus_of_a_server_draw_by_its_weights(tmp_path, gpu):
    data = small_graph()
    data.w, data.v = torch.arange(data.num_edges) % 5, torch.arange(data.num_edges) % 3
    partition = partitioned(data, tmp_path, 2, weights=["w", "v"])
    by = {name: replace(CONFIG, weights=(name,)) for name in ("w", "v")}
    mine, theirs = zip(*drafts_by_gpus(partition, SamplingOptions(weight_attr="w"), [by["w"], CONFIG]), strict=True)
    assert mine == theirs
    assert mine[0] != mine[1]
    with pytest.raises(
        OptionError, match=r"weight_attr: \['v'\]: the GPU that samples has .*\['w'\]. Start graph servers"
    ):
        list(drafts_by_gpus(partition, SamplingOptions(weight_attr="w"), [by["v"]]))
    with pytest.raises(OptionError, match="no edge type has it"):
        ServerPlan.sampling_gpus(
            str(partition.directory), SamplingOptions(weight_attr="u", **OF_SERVER), CacheOptions()
        )
    assert ServerPlan.sampling_gpus(str(tmp_path / "nowhere"), SamplingOptions(), CacheOptions()) is None


def test_gpus_of_a_server_draw_by_time_where_it_does(tmp_path, gpu):
    partition = partitioned_by_time(shop("edges"), tmp_path, 2)
    edge_types = len(partition.schema.edge_types)
    timed = SamplerConfig(seed_type=0, fanouts=((3,) * edge_types,), disjoint=True, timed=True, with_edge=True)
    plain = replace(timed, timed=False)
    with_times = SamplingOptions(time_attr="time")
    ((mine, theirs),) = drafts_by_gpus(partition, with_times, [timed])
    assert mine == theirs
    ((mine, theirs),) = drafts_by_gpus(partition, SamplingOptions(), [plain])
    assert mine == theirs
    with pytest.raises(OptionError, match=r"sampling\.time_attr: the GPU that samples has the graph without its times"):
        list(drafts_by_gpus(partition, SamplingOptions(), [timed]))


def test_attributes_of_sampler_processes_lie_where_the_cache_says():
    assert gpus(features="auto").on_host == ()
    assert gpus(features="auto", feature_bytes=3000).on_host == ("features",)
    assert gpus(features="auto", memory=3000).features == "cpu"
    with pytest.raises(OptionError, match=r"sampling\.features: 'uva' with cache\.memory"):
        gpus(features="uva", memory=3000)


def test_processes_take_the_gpus_in_turn():
    assert [gpus().device(index) for index in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]


def test_a_process_without_its_gpu_says_so(tmp_path):
    graph = partitioned(small_graph(), tmp_path, 1)
    options = SamplingOptions(num_workers=1, worker_devices=["cuda:7"], timeout_s=60)
    with Session(graph, options, seed=1) as context, pytest.raises(SamplerError, match=r"cannot start.*CUDA"):
        next(iter(context.make_loader(SPEC)))


@pytest.mark.parametrize("sampling", [{"num_workers": 1, "worker_devices": ["cuda:7"], "topology": "uva"}, {}])
def test_ranks_that_cannot_begin_leave_no_memory_behind(tmp_path, gpu, sampling, monkeypatch):
    """Sampler processes without their GPU, and a producer of this process that cannot be made."""
    whole, before = partitioned(small_graph(), tmp_path, 2), memory_files()
    graph = HostsGraph(LocalPartition.open(whole.directory, parts=[0]), link(0), "127.0.0.1")

    def broken(*given, **options):
        raise SamplerError("sampling cannot start.")

    if not sampling:
        monkeypatch.setattr(on_gpu, "DeviceProducer", broken)
    with pytest.raises(SamplerError, match="cannot start"):
        Session(graph, SamplingOptions(**sampling), cache=CacheOptions(memory=None if sampling else 500))
    assert memory_files() == before


def memory_files():
    gc.collect()  # of maps that an error's frames still have
    fds = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    return sorted(str(fd) for fd in fds if fd.is_symlink() and "memfd:glt" in os.readlink(fd))


def test_gpus_that_have_nothing_to_do_are_refused(tmp_path):
    graph = partitioned(small_graph(), tmp_path, 1)
    options = SamplingOptions(num_workers=1, worker_devices=["cuda:0"], topology="cpu")
    with pytest.raises(OptionError, match=r"cuda:0 has no effect with sampling\.topology cpu"):
        Session(graph, options, seed=1)


def test_a_process_without_a_gpu_imports_no_torch(tmp_path):
    partition = partitioned(small_graph(), tmp_path, 1)
    code = (
        "import sys; from glt_lightning.workers.producer.samplers import Samplers, SamplerSource; "
        "from glt_lightning.graph import LocalPartition; "
        f"Samplers(SamplerSource.of(LocalPartition.open({str(partition.directory)!r}))); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
