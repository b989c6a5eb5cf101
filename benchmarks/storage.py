"""What it costs to gather rows that are stored in fewer bytes, against rows of float32.

    python benchmarks/storage.py [--rows 2000000] [--features 100] [--rounds 7]

One thread gathers random rows of a table that is larger than any cache, into warm memory, as a sampler does.
cpu_s_per_gb: of output, which is float32 whatever is stored; median of interleaved rounds, smallest and largest.
ratio: by that of float32.  row_bytes: of what is stored, and sent between hosts.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
from measure import report

from glt_lightning.kernels import ENCODINGS, Shards

_GATHERED = 200_000  # rows at a time, as a batch has


def tables(rows: int, features: int) -> dict[str, Shards]:
    """The same numbers as float32 and in every encoding, made piece by piece."""
    rng = np.random.default_rng(0)
    stored = {"float32": np.empty((rows, features), np.float32)}
    stored |= {e.name: np.empty((rows, *e.stored_shape((features,))), e.dtype) for e in ENCODINGS.values()}
    for begin in range(0, rows, _GATHERED):
        piece = rng.standard_normal((min(_GATHERED, rows - begin), features), np.float32)
        stored["float32"][begin : begin + len(piece)] = piece
        for name, encoding in ENCODINGS.items():
            stored[name][begin : begin + len(piece)] = encoding.encode(piece)
    return {name: Shards([array], encoding=ENCODINGS.get(name)) for name, array in stored.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    of_kind = tables(args.rows, args.features)
    rng, out = np.random.default_rng(1), np.ones((_GATHERED, args.features), np.float32)
    spent: dict[str, list[float]] = {name: [] for name in of_kind}
    for _ in range(args.rounds):
        ids = rng.integers(0, args.rows, _GATHERED)
        for name, table in of_kind.items():
            begin = time.process_time()
            table.gather(ids, out)
            spent[name].append((time.process_time() - begin) / (out.nbytes / 1e9))
    for name, table in of_kind.items():
        times = sorted(spent[name])
        report(
            bench="storage",
            system="ours",
            stored=name,
            features=args.features,
            rows=args.rows,
            row_bytes=table.row_bytes,
            cpu_s_per_gb=median(times),
            least=times[0],
            most=times[-1],
            ratio=median(times) / median(spent["float32"]),
        )


if __name__ == "__main__":
    main()
