"""What the report predicts is what ranks measure that hold one part each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glt_lightning.cluster.link import Link
from glt_lightning.cluster.remote_rows import Traffic as Measured
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.loader import LoaderContext, LoaderSpec
from glt_lightning.loader.hosts import HostsGraph
from glt_lightning.options import STORAGE, SamplingOptions
from glt_lightning.partition.report import TrafficOptions
from glt_lightning.partition.report.traffic import PartTraffic, predict_traffic
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks

NEAR = 0.05


def measure(
    partition: LocalPartition, options: TrafficOptions, placement: str, seed: int, epochs: int
) -> list[tuple[Measured, int]]:
    """What each rank of worker mode, with one part each, asks of the others, and in how many batches."""
    count = partition.manifest.num_parts
    drawn = {name: getattr(options, name) for name in ("with_edge", "replace", "weight_attr")}
    sampling = SamplingOptions(seed_placement=placement, **drawn)
    spec = LoaderSpec(
        name="train",
        split="train",
        num_neighbors=options.num_neighbors,
        batch_size=options.batch_size,
        shuffle=True,
    )

    def run(rank: int, exchange: Callable[[str], list[str]]) -> tuple[Measured, int]:
        link = Link(job="test", role="worker", name=f"rank {rank}", token="a-secret-of-this-test")
        graph = HostsGraph(LocalPartition.open(partition.directory, parts=[rank]), link, "127.0.0.1")
        with LoaderContext(graph, sampling, seed=seed, rank=rank, world_size=count, exchange=exchange) as context:
            loader, batches = context.make_loader(spec), 0
            for epoch in range(epochs):
                loader.set_epoch(epoch)
                batches += sum(1 for _ in loader)
            exchange("all done")
            return context._producer.traffic, batches

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
@pytest.mark.parametrize("parts", [2, 4])
def test_within_five_percent_of_worker_mode(tmp_path: Path, parts: int, placement: str) -> None:
    """Other seeds of the draws, other epochs, and not all batches of one."""
    partition = partitioned(small_graph(8000), tmp_path, parts, undirected=True)
    options = TrafficOptions(num_neighbors=[4, 3], batch_size=32, batches=16)
    (predicted,) = [t for t in predict_traffic(partition, options) if t.placement == placement]
    for part, (measured, batches) in enumerate(measure(partition, options, placement, seed=7, epochs=2)):
        assert batches > options.batches
        off = errors(predicted.parts[part], measured, batches)
        assert max(off.values()) < NEAR, off


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize(
    "more",
    [{}, {"with_edge": True}, {"replace": True, "num_neighbors": [3, -1, 2]}, {"weight_attr": "rare"}],
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
    for traffic in predict_traffic(partition, options):
        for part, (measured, batches) in enumerate(measure(partition, options, traffic.placement, seed=3, epochs=1)):
            assert batches == traffic.parts[part].batches == traffic.steps
            assert max(errors(traffic.parts[part], measured, batches).values()) < 1e-12


@pytest.mark.parametrize("kind", STORAGE)
def test_rows_in_fewer_bytes(tmp_path: Path, kind: str) -> None:
    partition = partitioned(small_graph(), tmp_path, 2, storage={"x": kind, "edge_attr": kind})
    options = TrafficOptions(num_neighbors=[4, 3], batch_size=8, batches=1000, seed=3)
    (_, traffic) = predict_traffic(partition, options)
    for part, (measured, batches) in enumerate(measure(partition, options, "global", seed=3, epochs=1)):
        assert max(errors(traffic.parts[part], measured, batches).values()) < 1e-12


def test_fan_outs_by_edge_type(tmp_path: Path) -> None:
    partition = partitioned(small_hetero(), tmp_path, 2, undirected=True)
    fanouts = {"__".join(e): [1 + r, -1] for r, e in enumerate(partition.schema.edge_types)}
    options = TrafficOptions(num_neighbors=fanouts, batch_size=10, batches=1000, seed=3)
    traffic = predict_traffic(partition, options)[1]
    for part, (measured, batches) in enumerate(measure(partition, options, "global", seed=3, epochs=1)):
        assert max(errors(traffic.parts[part], measured, batches).values()) < 1e-12


def test_owner_placement_keeps_batches_at_home(tmp_path: Path) -> None:
    partition = partitioned(small_graph(), tmp_path, 2)
    owner, dealt = predict_traffic(partition, TrafficOptions(num_neighbors=[2], batch_size=8))
    assert (owner.placement, dealt.placement) == ("owner", "global")
    for own, any_part in zip(owner.parts, dealt.parts, strict=True):
        assert own.remote_share < any_part.remote_share


def test_one_part_asks_nobody(tmp_path: Path) -> None:
    partition = partitioned(small_graph(), tmp_path, 1)
    for traffic in predict_traffic(partition, TrafficOptions(num_neighbors=[2, 2], batch_size=16)):
        (part,) = traffic.parts
        assert (part.remote_rows.mean, part.requests.mean, part.bytes.mean, part.remote_share) == (0, 0, 0, 0)
        assert part.caches == ()
        assert part.nodes.mean > 16
    assert np.isfinite(traffic.parts[0].nodes.error)
