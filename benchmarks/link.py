"""The loader of edges beside that of nodes, [15, 10] x 512 with features: M sampled edges per CPU second, in this process.

    python benchmarks/link.py PARTITION [--batches 10] [--rounds 5] [--dgl PYTHON]

PARTITION: a partition folder with one edge type; all of its parts are mapped. Edges to predict are some of its own, excluded from
the messages in ``exclude``. ``nodes``: a node loader with as many seeds as ``binary strict`` has on average. ``distinct``: nodes
among the ends of a batch's pairs. Systems take turns; the first round of each, which loads code, is not counted. --dgl: an
interpreter that has DGL, for peer_dgl_link.py, whose loaders take their turns, too; PARTITION then has one part.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import report

from glt_lightning import LinkSpec, LoaderSpec, NegativeSampling, Session

FANOUTS, EDGES_PER_BATCH, POSITIVES = [15, 10], 512, 100_000
KINDS: dict[str, dict[str, Any]] = {
    "binary strict": {"neg_sampling": NegativeSampling(mode="binary", amount=1)},
    "binary": {"neg_sampling": NegativeSampling(mode="binary", amount=1, strict=False)},
    "binary strict exclude": {
        "neg_sampling": NegativeSampling(mode="binary", amount=1),
        "exclude_target_edges": "reverse",
    },
    "triplet strict": {"neg_sampling": NegativeSampling(mode="triplet", amount=1)},
    "triplet": {"neg_sampling": NegativeSampling(mode="triplet", amount=1, strict=False)},
    "shared": {"neg_sampling": NegativeSampling(mode="triplet", amount=512, sharing="shared")},
    "binary degree": {
        "neg_sampling": NegativeSampling(mode="binary", amount=1, src_weight="degree", dst_weight="degree")
    },
    "no negatives": {},
}


def some_edges(session: Session) -> np.ndarray:
    """int64 [2, S]: stored edges, one for each of S nodes."""
    spec = LoaderSpec(name="edges", split="train", num_neighbors=[1], batch_size=POSITIVES, shuffle=True)
    batch = next(iter(session.make_loader(spec)))
    return batch.n_id[batch.edge_index].numpy()


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def num_ends(batch: Any) -> int:
    names = ("edge_label_index", "src_index", "dst_pos_index", "dst_neg_index")
    return len(torch.cat([batch[name].flatten() for name in names if name in batch]).unique())


def start_dgl(python: str | None, partition: str, batches: int) -> AbstractContextManager[Any]:
    """DGL's process: a round for each line that it is given."""
    if python is None:
        return nullcontext()
    script = Path(__file__).with_name("peer_dgl_link.py")
    command = [python, str(script), partition, "--batches", str(batches)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def round_of_dgl(process: Any) -> Iterator[tuple[str, tuple[float, int]]]:
    process.stdin.write("round\n")
    process.stdin.flush()
    while True:
        line = process.stdout.readline()
        if not line:
            raise SystemExit("DGL's process ended; its error is above.")
        if line.startswith("{"):
            found = json.loads(line)
            yield found["system"], (found["cpu_s"], found["edges"])
            if found["last"]:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dgl", metavar="PYTHON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer = start_dgl(args.dgl, args.partition, args.batches)
    with Session(args.partition) as session, peer as dgl:
        edges = some_edges(session)
        plain = {"num_neighbors": FANOUTS, "batch_size": EDGES_PER_BATCH, "shuffle": True, "edge_label_index": edges}
        streams = {
            name: endless(session.make_loader(LinkSpec(name=name, **plain, **kind))) for name, kind in KINDS.items()
        }
        ends = {name: sum(num_ends(next(stream)) for _ in range(4)) // 4 for name, stream in streams.items()}
        seeds = ends["nodes"] = ends["binary strict"]
        spec = LoaderSpec(name="nodes", split="train", num_neighbors=FANOUTS, batch_size=seeds, shuffle=True)
        streams["nodes"] = endless(session.make_loader(spec))
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in streams}
        for _ in range(args.rounds + 1):
            for name, stream in streams.items():
                began = time.process_time()
                edge_count = sum(next(stream).num_edges for _ in range(args.batches))
                found[name].append((time.process_time() - began, edge_count))
            for name, measured in round_of_dgl(dgl) if dgl else ():
                found.setdefault(name, []).append(measured)
        if dgl:
            dgl.stdin.close()  # which ends it
    for name, rounds in found.items():
        rates = sorted(count / cpu_s / 1e6 for cpu_s, count in rounds[1:])
        report(
            bench="link",
            system=name,
            distinct=ends.get(name),
            rounds=args.rounds,
            m_edges_per_cpu_s=rates[len(rates) // 2],
            least=rates[0],
            most=rates[-1],
            edges_per_batch=sum(count for _, count in rounds[1:]) // args.rounds // args.batches,
            cpu_ms=sum(cpu_s for cpu_s, _ in rounds[1:]) / args.rounds / args.batches * 1e3,
        )


if __name__ == "__main__":
    main()
