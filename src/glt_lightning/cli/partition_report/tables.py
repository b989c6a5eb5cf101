"""The tables of a report, for the terminal and for HTML."""

from __future__ import annotations

from collections.abc import Sequence

from glt_lightning.base import numbers
from glt_lightning.cli.partition_report.contents import Contents, versions_text
from glt_lightning.cli.partition_report.estimate import Estimate
from glt_lightning.cli.partition_report.report import Report
from glt_lightning.cli.partition_report.traffic import ExpectedTraffic, PartTraffic
from glt_lightning.lightning import Table

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


def facts(report: Report) -> list[tuple[str, str]]:
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
        rows.insert(1, ("versions", f"{versions_text(contents.versions)}, of which this report has nothing"))
    if report.no_traffic:
        rows.append(("traffic", f"cannot be predicted: {report.no_traffic}"))
    else:
        rows.append(("traffic", _assumed(report)))
    return rows


def _hotness(report: Report) -> str:
    hotness = report.contents.hotness
    policies = [f"{policy} ({numbers.options(how)})" if how else policy for policy, how in hotness.items()]
    if report.contents.num_parts == 1 or not report.traffic:
        return "; ".join(policies) or "none"
    if report.policies != ("presampled",):
        return "; ".join(policies)
    return "none; for caches, remote nodes are ranked by counts in other sampled batches (presampled)"


def _assumed(report: Report) -> str:
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


def traffic_table(traffic: ExpectedTraffic) -> Table:
    rows = [(str(part.part), *_cells(part)) for part in traffic.parts]
    batches = numbers.counted(traffic.steps, "batch")
    note = f"{batches} per rank and epoch; remote rows: node and edge attributes that are asked for"
    return Table(_PLACEMENTS[traffic.placement], _TRAFFIC, (*rows, ("mean", *_mean_cells(traffic))), note)


def _cells(part: PartTraffic) -> tuple[str, ...]:
    return _traffic_cells(
        part.nodes, part.remote_nodes, part.remote_rows, part.requests, part.bytes, part.bytes_out, part.bytes_in
    )


def _mean_cells(traffic: ExpectedTraffic) -> tuple[str, ...]:
    names = ("nodes", "remote_nodes", "remote_rows", "requests", "bytes", "bytes_out", "bytes_in")
    return _traffic_cells(*(Estimate.mean_of([getattr(part, name) for part in traffic.parts]) for name in names))


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
