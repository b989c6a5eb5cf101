"""A graph of which a device has some parts, and owners in this process the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import GpuBudgets
from glt_lightning.graph import BatchArrays, DeviceStore, RemoteCache
from glt_lightning.kernels import Kernels
from glt_lightning.sampling import BatchRequest, Counters, Draft, KHopSampler, Sample, SamplerConfig
from glt_lightning.sampling.drawn_by import weights_of
from tests.helpers.owners import split_up
from tests.helpers.partitions import partitioned

COUNTED = [f"{kind}_{what}" for kind in ("local", "cached", "remote", "disk") for what in ("rows", "bytes")]
COUNTED += ["frontier_rows", "cached_frontier_rows", "remote_frontier_rows"]


def written(draft: Draft) -> dict[str, np.ndarray]:
    return draft.write(np.zeros(draft.nbytes, dtype=np.uint8))


def sampled(sampler: KHopSampler, request: BatchRequest) -> Sample:
    """A batch where it was made."""
    draft = sampler.draft(request)
    return Sample(request.number, draft.values(), draft.counters)


def as_array(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        is_bfloat16 = value.dtype == torch.bfloat16
        return value.view(torch.int16).cpu().numpy().view(np.uint16) if is_bfloat16 else value.cpu().numpy()
    return value


def assert_same(sample: Sample, expected: Mapping[str, np.ndarray]) -> None:
    assert sample.arrays.keys() == expected.keys()
    for name, want in expected.items():
        got = as_array(sample.arrays[name])
        assert got.dtype == want.dtype, name
        assert got.shape == want.shape, name
        assert got.tobytes() == want.tobytes(), name


class PartsCase:
    """The same graph in one piece, in parts for the CPU, and in parts for the device."""

    def __init__(
        self,
        kernels: Kernels,
        folder: Path,
        data: Data | HeteroData,
        owners: list[list[int]],
        memory: tuple[str, str] = ("device", "device"),
        undirected: bool = True,
        storage: dict[str, str] | None = None,
        weight: str | None = None,
    ) -> None:
        """weight: the attribute by which neighbours are drawn, where edges have it."""
        named = {"storage": storage, "weights": [weight] if weight else None}
        self.whole = partitioned(data, folder, sum(map(len, owners)), undirected=undirected, **named)
        self.weights = weights_of(self.whole.manifest, weight)
        self.here, self.remote = split_up(self.whole, owners)
        topology, features = memory
        budget = GpuBudgets(topology=2000, features=2000) if "hybrid" in memory else GpuBudgets()
        arrays = BatchArrays(self.here, weights=self.weights)
        self.store = DeviceStore.open(arrays, kernels, topology=topology, features=features, budgets=budget)
        self.edge_types = len(self.whole.schema.edge_types)

    def close(self) -> None:
        self.store.close()

    def config(self, *fanouts: int, seed_type: int | None = None, **options: Any) -> SamplerConfig:
        if seed_type is None:
            seed_type = self.whole.split("train").node_type
        return SamplerConfig(seed_type, tuple((k,) * self.edge_types for k in fanouts), **options)

    def requests(self, count: int = 2) -> Iterator[BatchRequest]:
        gids = self.whole.split("train").gids
        for number in range(count):
            chosen = np.ascontiguousarray(gids[number * 7 : number * 7 + 16])
            yield BatchRequest(number, 99 + number, chosen, np.arange(16))

    def sampler(self, config: SamplerConfig, kept: RemoteCache | None = None) -> KHopSampler:
        return KHopSampler(self.here, config, store=self.store, remote=self.remote, cache=kept)

    def check(
        self,
        config: SamplerConfig,
        requests: Iterable[BatchRequest] | None = None,
        kept: tuple[RemoteCache | None, RemoteCache | None] = (None, None),
    ) -> list[Counters]:
        """Batches one after the other. kept: for the CPU's sampler, and for the device's. Returns the latter's counters."""
        device, cpu = self.sampler(config, kept[1]), KHopSampler(self.here, config, remote=self.remote, cache=kept[0])
        whole, counters = KHopSampler(self.whole, config), []
        for request in requests or self.requests():
            draft, sample = cpu.draft(request), sampled(device, request)
            assert sample.number == request.number
            assert_same(sample, written(draft))
            assert_same(sample, written(whole.draft(request)))
            for name in () if config.disjoint else COUNTED:  # the CPU counts a row that is in several trees once
                assert getattr(sample.counters, name) == getattr(draft.counters, name), name
            counters.append(sample.counters)
        return counters
