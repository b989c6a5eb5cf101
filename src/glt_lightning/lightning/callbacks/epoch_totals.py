"""What the batches of an epoch took, over all ranks: as sums, as metrics, and in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glt_lightning.base import numbers
from glt_lightning.lightning.callbacks.verdict import stages, verdict
from glt_lightning.loader import LoaderStats
from glt_lightning.sampling import Counters

_MB = 1e6


@dataclass
class EpochTotals:
    """Sums over the loaders of a rank, or over ranks.

    ranks: those that trained with loaders of ours.  elapsed_s: of training, without validation; validation_s: of that.
    named_nodes: as in `LoaderStats`.  core_s: of their threads on a core; core_wait_s: of those that could run and had no core.
    Seconds of ranks are added up, as if one had followed the other.
    """

    ranks: int = 0
    batches: int = 0
    seeds: int = 0
    named_nodes: int = 0
    nodes: int = 0
    edges: int = 0
    wait_s: float = 0.0
    elapsed_s: float = 0.0
    validation_s: float = 0.0
    counters: Counters = field(default_factory=Counters)
    core_s: float = 0.0
    core_wait_s: float = 0.0

    def add(self, stats: LoaderStats) -> None:
        """Adds what a loader has delivered so far."""
        self.batches += stats.batches
        self.seeds += stats.seeds
        self.named_nodes += stats.named_nodes
        self.nodes += stats.nodes
        self.edges += stats.edges
        self.wait_s += stats.wait_s
        self.counters.add(stats.counters)

    def since(self, before: EpochTotals) -> EpochTotals:
        """What came on top of an earlier state."""
        return self.from_list([now - then for now, then in zip(self.to_list(), before.to_list(), strict=True)])

    def to_list(self) -> list[int | float]:
        """All numbers in order: what ranks add up."""
        counts = [self.ranks, self.batches, self.seeds, self.named_nodes, self.nodes, self.edges]
        seconds = [self.wait_s, self.elapsed_s, self.validation_s, self.core_s, self.core_wait_s]
        return [*counts, *seconds, *self.counters.to_list()]

    @classmethod
    def from_list(cls, values: Sequence[int | float]) -> EpochTotals:
        """What `to_list` gave, or a sum of such."""
        ranks, batches, seeds, named, nodes, edges = (int(n) for n in values[:6])
        wait_s, elapsed_s, validation_s, core_s, core_wait_s = values[6:11]
        counters = Counters(*values[11:])  # type: ignore[arg-type]
        counts = ranks, batches, seeds, named, nodes, edges
        return cls(*counts, wait_s, elapsed_s, validation_s, counters, core_s, core_wait_s)

    @property
    def wait_share(self) -> float:
        return _share(self.wait_s, self.elapsed_s)

    @property
    def core_wait_share(self) -> float:
        return _share(self.core_wait_s, self.core_s + self.core_wait_s)

    @property
    def verdict(self) -> str:
        return verdict(self.wait_share, self.core_wait_share, self.counters)

    def metrics(self) -> dict[str, float]:
        """Rates over all ranks, shares of sums, and means over all batches. ``cache_hit_rate`` where rows of other parts
        were needed."""
        counters, elapsed_s = self.counters, self.elapsed_s / self.ranks
        asked = counters.cached_rows + counters.remote_rows
        named = self.named_nodes + self.edges
        found = {
            "batches_per_s": self.batches / elapsed_s,
            "seeds_per_s": self.seeds / elapsed_s,
            "sampled_edges_per_s": self.edges / elapsed_s,
            "wait_share": self.wait_share,
            "core_wait_share": self.core_wait_share,
            "local_share": _share(counters.local_rows, counters.rows),
            "remote_rows_per_batch": _share(counters.remote_rows, self.batches),
            "remote_mb_per_batch": _share(counters.remote_bytes / _MB, self.batches),
            "disk_rows_per_batch": _share(counters.disk_rows, self.batches),
            "deduplicated_share": _share(named - self.nodes, named),
        }
        return found | ({"cache_hit_rate": counters.cached_rows / asked} if asked else {})

    def line(self) -> str:
        """The same for people, with what the epoch was bound by. Rows are left out where all of them are local."""
        metrics = self.metrics()
        waited = f"{self.wait_share:.0%} waiting for batches"
        line = f"{numbers.rate(metrics['seeds_per_s'])} seeds/s, {waited}, bound by {self.bound()}"
        if self.counters.rows == self.counters.local_rows:
            return line
        return f"{line}; rows: {self._sources(metrics)}"

    def _sources(self, metrics: dict[str, float]) -> str:
        counters = self.counters
        rows = {
            "local": counters.local_rows,
            f"cached (hit rate {metrics.get('cache_hit_rate', 0.0):.2f})": counters.cached_rows,
            f"remote ({_amount(metrics['remote_mb_per_batch'])} MB per batch)": counters.remote_rows,
            "disk": counters.disk_rows,
            "on the GPU": counters.device_rows,
        }
        found = [f"{_percent(n, counters.rows)} {source}" for source, n in rows.items() if n or source == "local"]
        return ", ".join(found)

    def bound(self) -> str:
        """The verdict, and the share of the samplers' time, or of its threads' time, that went into it."""
        found, spent = self.verdict, stages(self.counters)
        if found == "cores":
            return f"cores ({self.core_wait_share:.0%} of thread time without a core)"
        return f"{found} ({_share(spent[found], sum(spent.values())):.0%} of sampler time)" if found in spent else found


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _percent(part: int, whole: int) -> str:
    share = _share(part, whole)
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def _amount(value: float) -> str:
    """Two digits at least, where there is anything."""
    return f"{value:.1f}" if value >= 1 or not value else f"{value:.2g}"
