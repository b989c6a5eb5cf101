"""The report of a partition: its contents and the traffic to expect."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from glt_lightning.base import Progress
from glt_lightning.cli.partition_report.contents import PRESAMPLED, Contents, collect_contents
from glt_lightning.cli.partition_report.options import TrafficOptions
from glt_lightning.cli.partition_report.traffic import ExpectedTraffic, count_batches, predict_traffic, why_no_batches
from glt_lightning.graph import LocalPartition, stored_policies


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report of a partition: its contents and the traffic to expect.

    Attributes:
        contents: Nodes, edges, cut and memory.
        options: The batches that were assumed.
        policies: Rankings by which caches are assumed to be filled.
        traffic: Predicted traffic, by seed placement; empty if nothing can be predicted.
        no_traffic: Why nothing can be predicted, or None.

    Example:
        >>> from glt_lightning.base import Progress
        >>> options = TrafficOptions(num_neighbors=[2], batch_size=4)
        >>> report = make_report(LocalPartition.open("parts"), options, Progress(False))
        >>> report.policies, list(report.to_json())
        (('degree',), ['contents', 'options', 'policies', 'traffic', 'no_traffic'])
    """

    contents: Contents
    options: TrafficOptions
    policies: tuple[str, ...]
    traffic: tuple[ExpectedTraffic, ...]
    no_traffic: str | None

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for JSON, with the totals that are computed from them."""
        values = asdict(self) | {"options": self.options.to_json()}
        contents = values["contents"]
        contents["edge_cut"] = self.contents.edge_cut
        for counts, raw in zip(self.contents.counts, contents["counts"], strict=True):
            raw |= {"total": counts.total, "balance": counts.balance}
        for memory, raw in zip(self.contents.memory, contents["memory"], strict=True):
            raw["total"] = memory.total
        return values


def make_report(partition: LocalPartition, options: TrafficOptions, progress: Progress) -> Report:
    """Makes a report: reads the sources of all edges once and samples some batches. Nothing is written.

    partition: with all parts.  progress: shows the work. Raises `OptionError` for options that do not fit the graph.

    Example:
        >>> from glt_lightning.base import Progress
        >>> options = TrafficOptions(num_neighbors=[2], batch_size=4)
        >>> report = make_report(LocalPartition.open("parts"), options, Progress(False))
        >>> [(traffic.placement, traffic.steps) for traffic in report.traffic]
        [('owner', 1), ('global', 1)]
    """
    manifest = partition.manifest
    with progress.phase("reading edges", sum(manifest.num_edges), "edges") as done:
        contents = collect_contents(partition, done)
    no_traffic = why_no_batches(partition, options)
    traffic: tuple[ExpectedTraffic, ...] = ()
    if no_traffic is None:
        with progress.phase("sampling", count_batches(partition, options), "batches") as done:
            traffic = predict_traffic(partition, options, done)
    policies = stored_policies(manifest) or (PRESAMPLED,)
    return Report(contents=contents, options=options, policies=policies, traffic=traffic, no_traffic=no_traffic)
