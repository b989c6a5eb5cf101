"""MB and CPU ms of a batch with ``sampling.aggregate_first: mean`` and with all rows, and CPU ms of a training step on each.

    python benchmarks/aggregate_first.py PARTITION [--rounds 8] [--hidden 256]

PARTITION: a partition folder; all of its parts are mapped. GraphSAGE with three layers, [15, 10, 5] x 1024, one thread. A round
makes the same batch in both ways and a step on each.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from measure import report
from step import CLASSES, LAYERS, step

from glt_lightning import LocalPartition
from glt_lightning.loader.collate import Collate
from glt_lightning.models.gnn import HomogeneousGNN
from glt_lightning.sampling import BatchRequest, KHopSampler, Sample, SamplerConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(1)
    partition = LocalPartition.open(args.partition)
    seeds = partition.split("train").gids
    ways = ("all rows", "mean")
    samplers, memory = {}, {}
    for name in ways:
        aggregate = None if name == "all rows" else name
        samplers[name] = KHopSampler(partition, SamplerConfig(0, ((15,), (10,), (5,)), aggregate=aggregate))
        memory[name] = np.empty(0, np.uint8)
    collate, rng = Collate(partition.manifest, (0,)), np.random.default_rng(0)
    width = partition.manifest.num_features("node")
    model = HomogeneousGNN("GraphSAGE", width, args.hidden, LAYERS, CLASSES, dropout=0.5, num_nodes=None, options={})
    spent: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for number in range(args.rounds + 2):
        chosen = rng.choice(seeds, min(args.batch_size, len(seeds)), replace=False)
        request = BatchRequest(number, number, chosen, np.arange(len(chosen)))
        for name in sorted(ways, reverse=bool(number % 2)):
            began = time.process_time()
            draft = samplers[name].draft(request)
            if len(memory[name]) < draft.nbytes:
                memory[name] = np.empty(2 * draft.nbytes, np.uint8)
            arrays = draft.write(memory[name])
            made = time.process_time() - began
            batch = collate(Sample(number, arrays))
            cost = step(model, batch, torch.arange(batch.batch_size) % CLASSES, False)
            if number > 1:  # the first ones touch their memory, and load code
                spent[name].append((draft.nbytes / 1e6, 1e3 * made, 1e3 * cost))
    for name, each in spent.items():
        mb, batch_ms, step_ms = np.median(np.array(each), axis=0).tolist()
        report(bench="aggregate_first", batches=name, mb=mb, batch_ms=batch_ms, step_ms=step_ms, rounds=len(each))


if __name__ == "__main__":
    main()
