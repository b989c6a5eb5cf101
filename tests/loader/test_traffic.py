"""What the report predicts is what ranks measure that hold one part each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glt_lightning.base import PartitionOptions, SamplingOptions
from glt_lightning.base.partition import STORAGE
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LinkSpec, LoaderSpec, LoaderStats, Session, TrafficOptions
from glt_lightning.loader.traffic.predict import PartTraffic, TrafficPrediction
from glt_lightning.partition import hold_out_edges, open_source, partition_graph
from glt_lightning.workers import HostsGraph, Link, Ranks, placed_parts
from glt_lightning.workers.cluster.remote_rows import Traffic as Measured
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.temporal import partitioned_by_time, shop

NEAR = 0.05


def measure(
    partition: LocalPartition, options: TrafficOptions, placement: str, seed: int, epochs: int
) -> list[tuple[Measured, int]]:
    """What each rank of worker mode, with one part each, asks of the others, and in how many batches."""
    drawn = {name: getattr(options, name) for name in ("with_edge", "replace", "weight_attr")}
    method = "labor" if options.labor else "neighbor"
    sampling = SamplingOptions(seed_placement=placement, method=method, **drawn)
    spec = LoaderSpec(
        name="train",
        split="train",
        num_neighbors=options.num_neighbors,
        batch_size=options.batch_size,
        shuffle=True,
    )
    return measure_loader(partition, spec, sampling, seed, epochs)


def measure_loader(
    partition: LocalPartition, spec: LoaderSpec | LinkSpec, sampling: SamplingOptions, seed: int, epochs: int = 1
) -> list[tuple[Measured, int]]:
    count = partition.manifest.num_parts

    def run(rank: int, exchange: Callable[[str], list[str]]) -> tuple[Measured, int]:
        link = Link(job="test", role="worker", name=f"rank {rank}", token="a-secret-of-this-test")
        graph = HostsGraph(LocalPartition.open(partition.directory, parts=[rank]), link, "127.0.0.1")
        with Session(graph, sampling, seed=seed, ranks=Ranks(rank, count, exchange)) as context:
            loader, batches = context.make_loader(spec), 0
            before = asdict(context._producer.traffic)  # seeds may have to ask for their times
            for epoch in range(epochs):
                loader.set_epoch(epoch)
                batches += sum(1 for _ in loader)
            exchange("all done")
            found = asdict(context._producer.traffic)
            return Measured(**{name: n - before[name] for name, n in found.items()}), batches

    return run_ranks(count, run)


def errors(predicted: PartTraffic, measured: Measured, batches: int) -> dict[str, float]:
    """How far off each mean is, as a share."""
    pairs = {
        "rows": (predicted.remote_rows.mean, measured.remote_rows),
        "requests": (predicted.requests.mean, measured.round_trips),
        "out": (predicted.bytes_out.mean, measured.bytes_out),
        "in": (predicted.bytes_in.mean, measured.bytes_in),
        "bytes": (predicted.bytes.mean, measured.bytes_out + measured.bytes_in),
    }
    return {name: abs(mean * batches / total - 1) for name, (mean, total) in pairs.items()}


@pytest.mark.parametrize("placement", ["owner", pytest.param("global", marks=pytest.mark.slow)])
@pytest.mark.parametrize("parts", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_within_five_percent_of_worker_mode(tmp_path: Path, parts: int, placement: str) -> None:
    """Other seeds of the draws, other epochs, and not all batches of one."""
    partition = partitioned(small_graph(8000), tmp_path, parts, undirected=True)
    options = TrafficOptions(num_neighbors=[4, 3], batch_size=32, batches=16)
    (predicted,) = [t for t in TrafficPrediction(partition, options).of_parts() if t.placement == placement]
    for part, (measured, batches) in enumerate(measure(partition, options, placement, seed=7, epochs=2)):
        assert batches > options.batches
        off = errors(predicted.parts[part], measured, batches)
        assert max(off.values()) < NEAR, off


@pytest.mark.diagonal
@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize(
    "more",
    [{}, {"with_edge": True}, {"replace": True, "num_neighbors": [3, -1, 2]}, {"weight_attr": "rare", "labor": True}],
)
def test_the_same_batches_ask_for_exactly_that(tmp_path: Path, make: Callable[[], Any], more: dict[str, Any]) -> None:
    data = make()
    if not more and "edge_attr" in data:
        del data.edge_attr
    weights = None
    if "weight_attr" in more:
        weights = ["rare"]
        for store in data.edge_stores:
            store.rare = torch.arange(store.num_edges) % 4 == 0
    partition = partitioned(data, tmp_path, 3, undirected=True, weights=weights)
    options = TrafficOptions(**{"num_neighbors": [4, 3], "batch_size": 8, "batches": 1000, "seed": 3} | more)
    for traffic in TrafficPrediction(partition, options).of_parts():
        for part, (measured, batches) in enumerate(measure(partition, options, traffic.placement, seed=3, epochs=1)):
            assert batches == traffic.parts[part].batches == traffic.steps
            assert max(errors(traffic.parts[part], measured, batches).values()) < 1e-12


@pytest.mark.parametrize("kind", STORAGE)
def test_rows_in_fewer_bytes(tmp_path: Path, kind: str) -> None:
    partition = partitioned(small_graph(), tmp_path, 2, storage={"x": kind, "edge_attr": kind})
    options = TrafficOptions(num_neighbors=[4, 3], batch_size=8, batches=1000, seed=3)
    (_, traffic) = TrafficPrediction(partition, options).of_parts()
    for part, (measured, batches) in enumerate(measure(partition, options, "global", seed=3, epochs=1)):
        assert max(errors(traffic.parts[part], measured, batches).values()) < 1e-12


@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_ranks_that_share_the_parts_of_a_host(tmp_path: Path, make: Callable[[], Any]) -> None:
    """Two hosts with two ranks each and three parts: bytes as the counters of the run have them, rank by rank."""
    partition, hosts, ranks = partitioned(make(), tmp_path, 3, undirected=True), 2, 2
    options = TrafficOptions(num_neighbors=[4, 3], batch_size=8, batches=1000, seed=3)
    spec = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=8, shuffle=True)

    def run(rank: int, exchange: Callable[[str], list[str]]) -> tuple[Measured, LoaderStats]:
        link = Link(job="test", role="worker", name=f"rank {rank}", token="a-secret-of-this-test")
        mine = LocalPartition.open(partition.directory, parts=placed_parts(rank // ranks, hosts, 3))
        graph = HostsGraph(mine, link, "127.0.0.1")
        with Session(graph, SamplingOptions(), seed=3, ranks=Ranks(rank, hosts * ranks, exchange)) as context:
            loader = context.make_loader(spec)
            for _ in loader:
                pass
            exchange("all done")
            return context._producer.traffic, loader.stats()

    predicted = TrafficPrediction(partition, options).of_ranks("global", hosts, ranks).parts
    for part, (traffic, stats) in zip(predicted, run_ranks(hosts * ranks, run), strict=True):
        counters, count = stats.counters, stats.batches
        assert (part.batches, part.seeds.mean * count) == (count, stats.seeds)
        assert (round(part.nodes.mean * count), round(part.edges.mean * count)) == (stats.nodes, stats.edges)
        assert round(part.remote_rows.mean * count) == counters.remote_rows > 0
        assert round(part.remote_row_bytes.mean * count) == counters.remote_bytes
        assert round(part.rows.mean * count) == counters.rows
        assert round(part.row_bytes.mean * count) == counters.remote_bytes + counters.local_bytes
        assert round(part.bytes.mean * count) == traffic.bytes_out + traffic.bytes_in
        assert round(part.requests.mean * count) == traffic.round_trips


def test_fan_outs_by_edge_type(tmp_path: Path) -> None:
    partition = partitioned(small_hetero(), tmp_path, 2, undirected=True)
    fanouts = {"__".join(e): [1 + r, -1] for r, e in enumerate(partition.schema.edge_types)}
    options = TrafficOptions(num_neighbors=fanouts, batch_size=10, batches=1000, seed=3)
    traffic = TrafficPrediction(partition, options).of_parts()[1]
    for part, (measured, batches) in enumerate(measure(partition, options, "global", seed=3, epochs=1)):
        assert max(errors(traffic.parts[part], measured, batches).values()) < 1e-12


def test_owner_placement_keeps_batches_at_home(tmp_path: Path) -> None:
    partition = partitioned(small_graph(), tmp_path, 2)
    owner, dealt = TrafficPrediction(partition, TrafficOptions(num_neighbors=[2], batch_size=8)).of_parts()
    assert (owner.placement, dealt.placement) == ("owner", "global")
    for own, any_part in zip(owner.parts, dealt.parts, strict=True):
        assert own.remote_share < any_part.remote_share


def test_one_part_asks_nobody(tmp_path: Path) -> None:
    partition = partitioned(small_graph(), tmp_path, 1)
    for traffic in TrafficPrediction(partition, TrafficOptions(num_neighbors=[2, 2], batch_size=16)).of_parts():
        (part,) = traffic.parts
        assert (part.remote_rows.mean, part.requests.mean, part.bytes.mean, part.remote_share) == (0, 0, 0, 0)
        assert part.caches == ()
        assert part.nodes.mean > 16
    assert np.isfinite(traffic.parts[0].nodes.error)


@pytest.mark.parametrize("of", ["edges", "nodes"])
def test_batches_by_time(tmp_path: Path, of: str) -> None:
    """Owners hear of trees and their bounds, and are asked for the attributes of a node once."""
    partition = partitioned_by_time(shop(of), tmp_path, 3)
    given = {} if of == "nodes" else {"input_time": np.arange(60) % 12}
    by_time = {"time_attr": "time", "time_window": 6}
    spec = LoaderSpec(name="train", split="train", num_neighbors=[3, -1], batch_size=8, shuffle=True, **given)
    options = TrafficOptions(num_neighbors=[3, -1], batch_size=8, batches=1000, seed=3, **by_time, **given)
    assert TrafficPrediction(partition, replace(options, input_time=None)).why_not == (
        None if of == "nodes" else "neighbours are drawn by time, and the seeds of split 'train' have no times"
    )
    exactly(partition, options, spec, SamplingOptions(seed_placement="owner", **by_time))


@pytest.mark.parametrize(
    "more",
    [
        {"neg_sampling": {"amount": 2}},
        {"neg_sampling": {"mode": "triplet", "amount": 3, "sharing": "shared"}, "exclude_target_edges": "none"},
        {"neg_sampling": {"strict": False}, "disjoint": True},
    ],
)
def test_batches_of_edges(tmp_path: Path, more: dict[str, Any]) -> None:
    """Owners hear of the edges of a batch, and are asked whether negatives are edges."""
    source = hold_out_edges(
        open_source(small_hetero(), str(tmp_path)), {"author__writes__paper": {"num_val": 0.2, "num_test": 0.2}}
    )
    partition_graph(
        source, tmp_path / "parts", PartitionOptions(num_parts=3), undirected=True, normalize="none", progress=False
    )
    partition = LocalPartition.open(tmp_path / "parts")
    spec = LinkSpec(
        name="train",
        edge_type="author__writes__paper",
        edge_label_index=partition.edge_split(0, "train").edge,
        num_neighbors=[4, 3],
        batch_size=16,
        shuffle=True,
        **{"exclude_target_edges": "reverse"} | more,
    )
    options = TrafficOptions(num_neighbors=[4, 3], batch_size=16, batches=1000, seed=3, **more)
    exactly(partition, options, spec, SamplingOptions(seed_placement="owner"))


def exactly(
    partition: LocalPartition, options: TrafficOptions, spec: LoaderSpec | LinkSpec, sampling: SamplingOptions
) -> None:
    traffic = TrafficPrediction(partition, options).of_parts()[0]
    for part, (measured, batches) in enumerate(measure_loader(partition, spec, sampling, seed=3)):
        assert batches == traffic.parts[part].batches == traffic.steps
        assert max(errors(traffic.parts[part], measured, batches).values()) < 1e-12
