"""What a cache of rows of other parts saves, against the best one there is, and what looking rows up in it costs.

    python benchmarks/cache.py traffic PARTITION [--policies vip,degree] [--ratio 0.05,0.1,0.2] [--batches 0]
    python benchmarks/cache.py gather PARTITION [--rounds 9]
    options of both: [--num_neighbors 15,10,5] [--batch_size 1024]

traffic: each part's rank samples an epoch of its own training seeds with the sampler of worker mode, without a cache and
with each, in this process; owners answer in it, too. ``remote`` is what the batches' counters call remote rows, per batch,
mean over parts; ``remote_share`` is by all rows, ``share_of_own`` the same of batches whose seeds are all of the rank's own
part, as all are where parts have equally many seeds. ``best`` is a static cache with as many rows that knows the epoch: those
that this very epoch reads most. No list can know that; how much of the gap is chance tells benchmarks/hotness.py.
gather: attributes of batches whose remote rows are all cached (lookup, routing, gather), against a gather of the same rows
from files that are all mapped; CPU seconds per GB of batch, in interleaved rounds. ``lookup_ms``: 500,000 ids.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, count, islice, pairwise
from pathlib import Path
from statistics import mean, median

import numpy as np
from measure import report

sys.path.append(str(Path(__file__).parents[1]))
from glt_lightning import LocalPartition
from glt_lightning.base import CacheOptions
from glt_lightning.graph import RemoteCache
from glt_lightning.kernels import Shards
from glt_lightning.sampling import Counters, EpochPlan, KHopSampler, SamplerConfig, fanout_table, k_hop, neighbor_source
from glt_lightning.workers.cluster.cache import CacheMaker
from tests.helpers.owners import DirectRows, split_up

_LOOKED_UP = 500_000


class RankOfPart:
    """The rank that maps one part, and its batches of an epoch. batches: so many; 0: those of an epoch."""

    def __init__(self, whole: LocalPartition, part: int, fanouts: list[int], batch_size: int, batches: int = 0) -> None:
        others = [p for p in range(whole.manifest.num_parts) if p != part]
        self.here: LocalPartition
        self.owners: DirectRows
        self.here, self.owners = split_up(whole, [[part], others])
        self.fanouts, self.batch_size, manifest = fanouts, batch_size, whole.manifest
        seeds = whole.split("train")
        self._config = SamplerConfig(seeds.node_type, fanout_table(fanouts, whole.schema))
        bounds = np.asarray(manifest.bounds[seeds.node_type]) + manifest.offsets[seeds.node_type]
        plan = EpochPlan(
            seeds=seeds.gids,
            batch_size=batch_size,
            seed=0,
            loader="train",
            rank=part,
            world_size=manifest.num_parts,
            shuffle=True,
            owner=np.searchsorted(bounds, seeds.gids, side="right") - 1,
        )
        epochs = (plan.requests(epoch) for epoch in (count() if batches else [0]))
        self.requests = list(islice(chain.from_iterable(epochs), batches or None))
        self.foreign = np.ones(manifest.total_nodes, dtype=np.bool_)
        for bounds_of_type, offset in zip(manifest.bounds, manifest.offsets, strict=False):
            self.foreign[offset + bounds_of_type[part] : offset + bounds_of_type[part + 1]] = False

    @contextmanager
    def keeping(self, options: CacheOptions | None = None) -> Iterator[tuple[KHopSampler, RemoteCache]]:
        """The sampler of the rank, with a filled cache; and that cache."""
        if options is None:
            yield KHopSampler(self.here, self._config, remote=self.owners), RemoteCache()
            return
        maker = CacheMaker(self.here, options)
        kept = RemoteCache.from_handle(maker.make(self.owners, progress=False), self.here.manifest)
        yield KHopSampler(self.here, self._config, remote=self.owners, cache=kept), kept
        kept.close()
        maker.close()

    def options(self, policy: str, ratio: float) -> CacheOptions:
        return CacheOptions(policy=policy, ratio=ratio)  # type: ignore[arg-type]

    def count(self, options: CacheOptions | None = None) -> tuple[Counters, Counters]:
        """Where the rows of the batches come from: of all, and of those with own seeds alone."""
        total, of_own = Counters(), Counters()
        with self.keeping(options) as (sampler, _):
            for request in self.requests:
                counters = sampler.draft(request).counters
                total.add(counters)
                if not self.foreign[request.seeds].any():
                    of_own.add(counters)
        return total, of_own

    def reads(self) -> np.ndarray:
        """int32 [N]: how often the batches read each row of another part; 0 for own rows."""
        reads = np.zeros(self.here.manifest.total_nodes, dtype=np.int32)
        source = neighbor_source(self.here, self._config, remote=self.owners)
        for request in self.requests:
            for gids in k_hop(source, request.typed_seeds(source.config.seed_type), request.key).gid:
                reads[gids] += 1
        reads[~self.foreign] = 0
        return reads

    def best(self, reads: np.ndarray, ratio: float) -> int:
        """Remote rows of the batches with the best cache of that size, where ``reads`` is what they read."""
        saved = 0
        for first, last in pairwise(self.here.manifest.offsets):
            of_type = np.sort(reads[first:last])
            saved += int(of_type[len(of_type) - int(ratio * len(of_type)) :].sum())
        return int(reads.sum()) - saved


def traffic(whole: LocalPartition, args: argparse.Namespace) -> None:
    parts = range(whole.manifest.num_parts)
    ranks = [RankOfPart(whole, part, args.num_neighbors, args.batch_size, args.batches) for part in parts]
    batches = [len(rank.requests) for rank in ranks]
    made_by = whole.manifest.made_by
    common = {
        "bench": "cache_traffic",
        "graph": made_by.get("source"),
        "algorithm": made_by.get("algorithm"),
        "parts": len(parts),
        "batches": sum(batches),
        "num_neighbors": args.num_neighbors,
        "batch_size": args.batch_size,
    }

    def figures(counted: list[tuple[Counters, Counters]]) -> dict[str, float]:
        total, of_own = ([each[i] for each in counted] for i in (0, 1))
        remote = sum(c.remote_rows for c in total)
        return {
            "remote": of_ranks([c.remote_rows for c in total]),
            "remote_share": remote / sum(c.rows for c in total),
            "share_of_own": sum(c.remote_rows for c in of_own) / sum(c.rows for c in of_own),
            "hit_rate": 1 - remote / max(1, sum(c.remote_rows + c.cached_rows for c in total)),
        }

    def of_ranks(rows: Sequence[int]) -> float:
        return mean(n / b for n, b in zip(rows, batches, strict=True))

    plain = [rank.count() for rank in ranks]
    rows = of_ranks([counted.rows for counted, _ in plain])
    report(**common, policy="none", ratio=0.0, rows=rows, **figures(plain))
    reads = [rank.reads() for rank in ranks]
    assert [int(each.sum()) for each in reads] == [counted.remote_rows for counted, _ in plain]
    for ratio in args.ratio:
        best = of_ranks([rank.best(each, ratio) for rank, each in zip(ranks, reads, strict=True)])
        report(**common, policy="best", ratio=ratio, remote=best, remote_share=best / rows)
        for policy in args.policies:
            ours = figures([rank.count(rank.options(policy, ratio)) for rank in ranks])
            over_best = ours["remote"] / best if best else None
            report(**common, policy=policy, ratio=ratio, **ours, over_best=over_best)


def gather(whole: LocalPartition, args: argparse.Namespace) -> None:
    rank = RankOfPart(whole, 0, args.num_neighbors, args.batch_size, args.rounds + 2)
    plain = {name: whole.node_shards(0, name) for name in ("n_id", *whole.manifest.node_attrs(0))}
    row_bytes = sum(shards.row_bytes for shards in plain.values())
    lines = []
    with rank.keeping(rank.options("degree", 1.0)) as (sampler, kept):
        assert kept.rows is not None
        kept_rows = kept.rows.tables[0]
        table = sampler.source.nodes[0]  # what a sampler does for the nodes of a batch, no less
        assert kept_rows is not None
        for request in rank.requests:
            found = k_hop(sampler.source, request.typed_seeds(0), request.key)
            gids, ends = found.gid[0].copy(), np.cumsum([0, *found.nodes_per_hop[0]])
            cached = kept_rows.find(gids) >= 0
            known = ~rank.foreign[gids] | cached
            hops = [np.ascontiguousarray(gids[a:b][known[a:b]]) for a, b in pairwise(ends)]
            ids = np.concatenate(hops)
            out = {name: np.ones((len(ids), *a.row_shape), a.dtype) for name, a in plain.items()}
            many = np.ascontiguousarray(np.resize(ids, _LOOKED_UP))
            values, eight = np.arange(whole.manifest.total_nodes), np.ones(_LOOKED_UP, np.int64)

            def as_sampled(hops: list[np.ndarray] = hops, out: dict[str, np.ndarray] = out) -> None:
                table.clear()
                for hop in hops:
                    table.route(hop)
                places = np.concatenate(table.places)
                for name, rows in out.items():
                    table.shards(name).gather(places, rows)

            def as_mapped(ids: np.ndarray = ids, out: dict[str, np.ndarray] = out) -> None:
                for name, rows in out.items():
                    plain[name].gather(ids, rows)

            look_up = partial(kept_rows.find, many)
            gather_8_bytes = partial(Shards([values]).gather, many, eight)
            seconds = _interleaved(as_sampled, as_mapped, look_up, gather_8_bytes)
            lines.append([*seconds, cached.sum() / len(ids), len(ids) * row_bytes / 1e9])
    lines = lines[2:]  # pages are touched for the first time
    report(
        bench="cache_gather",
        graph=whole.manifest.made_by.get("source"),
        rows_mb=median(line[5] for line in lines) * 1e3,
        cached_share=median(line[4] for line in lines),
        cpu_s_per_gb=median(line[0] / line[5] for line in lines),
        plain_cpu_s_per_gb=median(line[1] / line[5] for line in lines),
        ratio=median(line[0] / line[1] for line in lines),
        ratios=sorted(round(line[0] / line[1], 3) for line in lines),
        lookup_ms=median(line[2] for line in lines) * 1e3,
        lookup_over_gather_of_8_bytes=median(line[2] / line[3] for line in lines),
    )


def _interleaved(*calls: Callable[[], object]) -> list[float]:
    """CPU seconds of each: the least of three, in turns."""
    spent: list[list[float]] = [[] for _ in calls]
    for _ in range(3):
        for call, times in zip(calls, spent, strict=True):
            begin = time.process_time()
            call()
            times.append(time.process_time() - begin)
    return [min(times) for times in spent]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["traffic", "gather"])
    parser.add_argument("partition")
    parser.add_argument("--policies", type=lambda text: text.split(","), default=["vip", "degree"])
    parser.add_argument("--ratio", type=lambda text: [float(r) for r in text.split(",")], default=[0.05, 0.1, 0.2])
    parser.add_argument("--batches", type=int, default=0, help="of each rank; 0: a whole epoch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--num_neighbors", type=lambda text: [int(k) for k in text.split(",")], default=[15, 10, 5])
    parser.add_argument("--batch_size", type=int, default=1024)
    args = parser.parse_args()
    whole = LocalPartition.open(args.partition)
    (traffic if args.mode == "traffic" else gather)(whole, args)


if __name__ == "__main__":
    main()
