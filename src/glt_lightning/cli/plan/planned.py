"""A plan: an epoch and the memory of a host, of one layout of a job."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glt_lightning.cli.plan.inputs import Batches
from glt_lightning.lightning import Counted, Dealing, Expected, HostMemory, Layout, Probe, expect, host_memory
from glt_lightning.loader import remote_cache_bytes
from glt_lightning.partition import mapped_memory
from glt_lightning.workers import placed_parts


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan as far as it can be changed. counted: None where batches are not counted.  available: bytes of memory of a host.
    ratio: size of the remote cache; None without one."""

    probe: Probe
    layout: Layout
    dealing: Dealing
    counted: Counted | None
    batches: Batches
    available: int
    ratio: float | None

    @property
    def expected(self) -> Expected:
        return expect(self.probe, self.layout, self.dealing, self.counted)

    @property
    def seconds(self) -> float:
        """Of an epoch, with validation."""
        totals = self.expected.mid
        return (totals.elapsed_s + totals.validation_s) / totals.ranks

    @property
    def memory(self) -> HostMemory:
        data, manifest, layout = self.batches.data, self.batches.partition.manifest, self.layout
        parts = placed_parts(0, layout.owners, manifest.num_parts)
        mapped = mapped_memory(manifest)
        cache = 0.0 if self.ratio is None else remote_cache_bytes(manifest, self.ratio)
        sampling = replace(data.sampling, num_workers=layout.workers, concurrency=layout.concurrency)
        return host_memory(
            self.probe.memory,
            sampling,
            layout,
            self.probe.largest_batch,
            self.available,
            cache=cache + (data.cache.memory_bytes or 0),
            pages=sum(mapped[p].total - mapped[p].splits for p in parts) + mapped[0].splits,
        )
