"""What looking rows up in the cache that learns costs, against a plain gather of the same rows.

    python benchmarks/dynamic_cache.py [--ids 500000] [--width 100] [--shards 64] [--repeat 7]

As many entries as ids, float32 rows. CPU time of the one thread, nanoseconds for an id: median, and least and most of
the repetitions. ``drop``: inserts into a full cache, each of which drops an entry.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from measure import report

from glt_lightning.kernels import DynamicCache, Shards


def timed(what: str, n: int, calls: list[Callable[[], object]]) -> float:
    """Reports ns for an id; returns the median."""
    ns = []
    for call in calls:
        begin = time.thread_time()
        call()
        ns.append((time.thread_time() - begin) / n * 1e9)
    report(what=what, median=float(np.median(ns)), least=min(ns), most=max(ns))
    return float(np.median(ns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("ids", 500_000), ("width", 100), ("shards", 64), ("repeat", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    n, random = args.ids, np.random.default_rng(0)

    table = np.repeat(np.arange(n, dtype=np.float32)[:, None], args.width, axis=1)
    cache = DynamicCache(n, [(table.dtype, table.shape[1:])], shards=args.shards)
    order = random.permutation(n)
    cache.insert(order, [table[order]])
    kept = np.flatnonzero(cache.find(np.arange(n))[0] >= 0)
    hot, out = random.choice(kept, n), [np.zeros_like(table)]
    cold = [random.integers(10 * n, 1000 * n, n) for _ in range(args.repeat)]

    gather = timed("gather", n, [lambda: Shards([table]).gather(hot, out[0])] * args.repeat)
    hit = timed("hit", n, [lambda: cache.find(hot, out)] * args.repeat)
    timed("miss", n, [lambda: cache.find(cold[0], out)] * args.repeat)
    timed("drop", n, [lambda ids=ids: cache.insert(ids, [table]) for ids in cold])
    report(entries=len(cache), bytes_for_an_entry=cache.nbytes / n, hit_over_gather=hit / gather)


if __name__ == "__main__":
    main()
