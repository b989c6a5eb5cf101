"""The report of a finished partition: its contents and the traffic to expect, as tables, as a page, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glt_lightning.base import OptionError, Progress, numbers
from glt_lightning.graph import LocalPartition
from glt_lightning.lightning.facts import read_array
from glt_lightning.lightning.report.page import (
    Series,
    Table,
    bars,
    lines,
    may_be_replaced,
    page_text,
    render,
)
from glt_lightning.loader import Estimate, ExpectedTraffic, TrafficOptions, TrafficPrediction
from glt_lightning.partition import Contents, whole_file

if TYPE_CHECKING:
    from glt_lightning.lightning.datamodule import GLTDataModule

_MANY = 6  # parts from which on a plot shows the means alone
_NAMES = {
    "topology": "topology and ids",
    "node_attrs": "node attributes",
    "edge_attrs": "edge attributes",
    "hot_lists": "hotness",
    "splits": "splits and gids",
    "total": "sum",
}
_PLACEMENTS = {
    "owner": "seed_placement owner: a rank's batches come from the seeds of its own part",
    "global": "seed_placement global: a rank's batches come from all seeds",
}


@dataclass(frozen=True, kw_only=True)
class PartitionReport:
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
        >>> report = PartitionReport.of(LocalPartition.open("parts"), options, Progress(False))
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

    @classmethod
    def of(cls, partition: LocalPartition, options: TrafficOptions, progress: Progress) -> PartitionReport:
        """Makes a report: reads the sources of all edges once and samples some batches. Nothing is written.

        partition: with all parts.  progress: shows the work. Raises `OptionError` for options that do not fit the graph.
        """
        prediction = TrafficPrediction(partition, options)
        with progress.phase("reading edges", sum(partition.manifest.num_edges), "edges") as done:
            contents = Contents.of(partition, done)
        traffic: tuple[ExpectedTraffic, ...] = ()
        if prediction.why_not is None:
            with progress.phase("sampling", prediction.most_batches, "batches") as done:
                traffic = prediction.of_parts(done)
        return cls(
            contents=contents,
            options=options,
            policies=prediction.policies,
            traffic=traffic,
            no_traffic=prediction.why_not,
        )

    def text(self) -> str:
        """The report as facts and aligned tables, for a terminal."""
        tables = contents_tables(self.contents)
        for traffic in self.traffic:
            tables += [traffic_table(traffic), *cache_tables(traffic)]
        return page_text(facts(self), tables)

    def html(self) -> str:
        """The report as a complete HTML page."""
        contents = self.contents
        return render(
            "partition.html",
            title=f"{contents.made_by.get('source', 'partition')}: {numbers.counted(contents.num_parts, 'part')}",
            facts=facts(self),
            plots=_contents_plots(contents),
            tables=contents_tables(contents),
            traffic=[
                {"table": traffic_table(each), "plots": _traffic_plots(each), "caches": cache_tables(each)}
                for each in self.traffic
            ],
        )

    @staticmethod
    def page_path(given: str | None, folder: Path) -> Path | None:
        """The path that ``--html`` writes to; None without it. Raises `OptionError` for a path that cannot be written."""
        if given is None:
            return None
        page = Path(given)
        if page.resolve().is_relative_to(folder.resolve()):
            raise OptionError(
                f"--html: {given} is inside the partition folder, which must not change. Choose another path."
            )
        if not page.absolute().parent.is_dir():
            raise OptionError(f"--html: there is no folder {page.absolute().parent}.")
        if page.is_dir():
            raise OptionError(f"--html: {given} is a folder; expected a file such as report.html.")
        try:
            replaced = may_be_replaced(page)
        except OSError as error:
            raise OptionError(
                f"--html: {given} cannot be replaced ({error.strerror or error}). Choose another name."
            ) from None
        if not replaced:
            raise OptionError(f"--html: {given} exists and is no page of ours. Choose another name.")
        return page

    def write(self, page: Path) -> None:
        """Writes the HTML page to the path of `page_path`. Raises `OptionError` if it cannot be written."""
        try:
            with whole_file(page) as temporary:
                temporary.write_text(self.html(), encoding="utf-8")
        except OSError as error:
            raise OptionError(f"--html: cannot write {page}: {error.strerror or error}.") from None


def traffic_options(data: GLTDataModule, batches: int, cache: Sequence[float]) -> TrafficOptions:
    """The batches that training with this data module makes. batches: to sample of each part.  cache: sizes of remote caches."""
    sampling, links = data.sampling, {}
    if data.links is not None:
        exclude = data.links.by_type[0].exclude_target_edges["train"]
        links = {
            "neg_sampling": data.links.neg_sampling,
            "exclude_target_edges": exclude,
            "reverse_edge_types": data.links.reverse_edge_types,
        }
    times = (
        (data.seeds.input_time or {}).get("train") if "train" not in (data.seeds.splits or {}) else None
    )  # the stored split is assumed
    return TrafficOptions(
        num_neighbors=data.num_neighbors,
        batch_size=data.batch_size,
        batches=batches,
        cache=cache,
        seed=sampling.seed or 0,
        weight_attr=sampling.weight_attr,
        time_attr=sampling.time_attr,
        time_window=sampling.time_window,
        time_boundary=sampling.time_boundary,
        input_time=None if times is None else read_array("seeds.input_time.train", times, "times"),
        disjoint=data.batches.disjoint,
        walks=sampling.importance_neighbors is not None,
        **links,
        **sampling.draw.values,
    )


# The tables, for the terminal and for pages.


def facts(report: PartitionReport) -> list[tuple[str, str]]:
    """Pairs (name, value) of the options of the partition and the assumptions of the prediction."""
    contents, made = report.contents, dict(report.contents.made_by)
    assigned: dict[str, object] = {key: made.pop(key) for key in ("algorithm", "seed") if key in made}
    if (
        assigned.get("algorithm") != "frequency"
    ):  # the line of hotness has the batches for which rows were ranked, if any
        made.pop("num_neighbors", None)
        made.pop("batch_size", None)
    rows = [
        ("partition", contents.folder),
        ("data set", str(made.pop("source", "unknown"))),
        ("assigned by", numbers.options(assigned)),
        ("hotness", _hotness(report)),
        ("further", numbers.options(made | {"package_version": contents.package_version})),
        ("edge cut", f"{numbers.percent(contents.edge_cut)} of the stored edges have a source of another part"),
    ]
    if contents.versions:
        rows.insert(1, ("versions", f"{contents.versions_text}, of which this report has nothing"))
    if report.no_traffic:
        rows.append(("traffic", f"cannot be predicted: {report.no_traffic}"))
    else:
        rows.append(("traffic", _assumed(report)))
    return rows


def _hotness(report: PartitionReport) -> str:
    hotness = report.contents.hotness
    policies = [f"{policy} ({numbers.options(how)})" if how else policy for policy, how in hotness.items()]
    if report.contents.num_parts == 1 or not report.traffic:
        return "; ".join(policies) or "none"
    if report.policies != ("presampled",):
        return "; ".join(policies)
    return "none; for caches, remote nodes are ranked by counts in other sampled batches (presampled)"


def _assumed(report: PartitionReport) -> str:
    options = report.options
    most = max(part.batches for traffic in report.traffic for part in traffic.parts)
    drawn = f"neighbours by weight ({options.weight_attr}), " if options.weight_attr else ""
    drawn += f"neighbours by time ({options.time_attr}), " if options.time_attr else ""
    drawn += "disjoint, " if options.disjoint and not options.time_attr else ""
    return (
        f"num_neighbors {options.num_neighbors}, batch_size {options.batch_size}, {drawn}one rank with one part per host; "
        f"means of {most} sampled batches per part, ± standard error"
    )


def contents_tables(contents: Contents) -> list[Table]:
    parts = tuple(f"part {p}" for p in range(contents.num_parts))
    counts = tuple(
        (f"{c.kind} {c.name}", *map(numbers.count, c.parts), numbers.count(c.total), numbers.factor(c.balance))
        for c in contents.counts
    )
    cuts = tuple(
        (f"edge cut {c.name}", *map(numbers.percent, c.shares), numbers.percent(c.total), "") for c in contents.cuts
    )
    memory = []
    for name, title in _NAMES.items():
        values = [getattr(each, name) for each in contents.memory]
        memory.append((title, *map(numbers.size, values), numbers.size(sum(values))))
    return [
        Table("Contents", ("", *parts, "all", "max/mean"), counts + cuts),
        Table("Memory per host (mapped files), one part each", ("", *parts, "all"), tuple(memory)),
    ]


_TRAFFIC = ("part", "nodes", "remote nodes", "share", "remote rows", "", "requests", "bytes", "", "out", "in")
_COUNTS = ("nodes", "remote_nodes", "remote_rows", "requests", "bytes", "bytes_out", "bytes_in")


def traffic_table(traffic: ExpectedTraffic) -> Table:
    rows = [(str(part.part), *_traffic_cells(*(getattr(part, name) for name in _COUNTS))) for part in traffic.parts]
    means = _traffic_cells(*map(traffic.mean, _COUNTS))
    batches = numbers.counted(traffic.steps, "batch")
    note = f"{batches} per rank and epoch; remote rows: node and edge attributes that are asked for"
    return Table(_PLACEMENTS[traffic.placement], _TRAFFIC, (*rows, ("mean", *means)), note)


def _traffic_cells(
    nodes: Estimate,
    remote: Estimate,
    rows: Estimate,
    requests: Estimate,
    both: Estimate,
    out: Estimate,
    into: Estimate,
) -> tuple[str, ...]:
    return (
        numbers.count(nodes.mean),
        numbers.count(remote.mean),
        numbers.percent(remote.mean / nodes.mean),
        numbers.count(rows.mean),
        numbers.error(rows.error, rows.mean),
        numbers.count(requests.mean),
        numbers.size(both.mean),
        numbers.error(both.error, both.mean),
        numbers.size(out.mean),
        numbers.size(into.mean),
    )


def cache_tables(traffic: ExpectedTraffic) -> list[Table]:
    """Makes a table for each policy, of the hit rates per part and the remaining remote rows."""
    policies = dict.fromkeys(cache.policy for cache in traffic.parts[0].caches)
    return [_cache_table(traffic, policy) for policy in policies]


def _cache_table(traffic: ExpectedTraffic, policy: str) -> Table:
    per_part = [[cache for cache in part.caches if cache.policy == policy] for part in traffic.parts]
    per_ratio = list(zip(*per_part, strict=True))
    head = ("part", *(numbers.ratio(each[0].ratio) for each in per_ratio))
    rows = [(str(part), *(numbers.percent(cache.hit_rate) for cache in caches)) for part, caches in enumerate(per_part)]
    rows.append(("mean", *(numbers.percent(mean_hit_rate([c.hit_rate for c in each])) for each in per_ratio)))
    for name, of in (
        ("rows", lambda each: numbers.count(Estimate.mean_of([c.remote_rows for c in each]).mean)),
        ("bytes", lambda each: numbers.size(Estimate.mean_of([c.bytes for c in each]).mean)),
        ("memory", lambda each: numbers.size(max(c.cache_bytes for c in each))),
    ):
        rows.append((name, *map(of, per_ratio)))
    return Table(
        f"Hit rate of a cache of remote rows ({policy}), seed_placement {traffic.placement}",
        head,
        tuple(rows),
        "columns: size as a share of all nodes of each type; rows and bytes: what a batch still asks for, mean; "
        "memory: of the cache, on the host where it is largest",
    )


def mean_hit_rate(rates: Sequence[float | None]) -> float | None:
    """The mean over the parts that read any remote row; None if none does."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else None


# The plots of the page.


def _contents_plots(contents: Contents) -> dict[str, str]:
    labels = [str(p) for p in range(contents.num_parts)]
    even = []
    for kind in ("nodes", "edges", "seeds"):
        of_kind = [c.parts for c in contents.counts if c.kind == kind]
        if total := sum(map(sum, of_kind)):
            sums = [sum(each) for each in zip(*of_kind, strict=True)]
            even.append(Series(kind, tuple(n * contents.num_parts / total for n in sums)))
    memory = Series("memory", tuple(each.total / 1e6 for each in contents.memory))
    return {
        "Nodes, edges and seeds of each part, by the mean of all parts": bars(labels, even, "1 = even"),
        "Mapped files of each part": bars(labels, [memory], "MB"),
    }


def _traffic_plots(traffic: ExpectedTraffic) -> dict[str, str]:
    labels = [str(part.part) for part in traffic.parts]
    asked = [Series("bytes per batch", tuple(part.bytes.mean / 1e6 for part in traffic.parts))]
    figures = {"Bytes per batch of the rank of each part": bars(labels, asked, "MB")}
    for policy in dict.fromkeys(cache.policy for cache in traffic.parts[0].caches):
        per_part = [[cache for cache in part.caches if cache.policy == policy] for part in traffic.parts]
        sizes = [numbers.ratio(cache.ratio) for cache in per_part[0]]
        curves = [Series(f"part {p}", tuple(_share(c.hit_rate) for c in each)) for p, each in enumerate(per_part)]
        means = tuple(_share(mean_hit_rate([c.hit_rate for c in each])) for each in zip(*per_part, strict=True))
        curves = [*(curves if len(curves) < _MANY else []), Series("mean", means)]
        figures[f"Hit rate by size of the cache ({policy})"] = lines(sizes, curves, "%")
    return figures


def _share(rate: float | None) -> float | None:
    return None if rate is None else 100 * rate
