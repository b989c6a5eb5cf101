"""Random walks, and the neighbours that they visit most: M steps per CPU second and seeds per CPU second, one thread.

    python benchmarks/walks.py PARTITION [--dgl PYTHON] [--rounds 3] [--seeds 1024] [--walks 50]

PARTITION: a partition folder with one part. --dgl: an interpreter that has DGL; its `random_walk` and its
`RandomWalkNeighborSampler` (PinSAGE) walk through the same rows (peer_dgl_walks.py), in turns with ours.

walk: walks of 10 steps from each seed. pinsage: of each seed the 10 nodes that its walks of 3 steps, which restart with
probability 0.5, visit most. With DGL they end instead of restarting, as in `pinsage stop`.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import report

from glt_lightning import LocalPartition
from glt_lightning.kernels import WalkRule
from glt_lightning.sampling import WalkStart
from glt_lightning.sampling.walks import local_walks

LENGTH, VISITED, NEIGHBORS, HALF = 10, 3, 10, 0.5


def rules() -> dict[str, WalkRule]:
    half = WalkRule.threshold(HALF)
    return {
        "walk": WalkRule(edge_types=(0,), length=LENGTH),
        "pinsage": WalkRule(edge_types=(0,), length=VISITED, restart=half),
        "pinsage stop": WalkRule(edge_types=(0,), length=VISITED, restart=half, ends=True),
    }


def cpu_s(call: Callable[[], int]) -> tuple[float, int]:
    """CPU seconds, and steps."""
    begin = time.process_time()
    steps = call()
    return time.process_time() - begin, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--dgl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1024)
    parser.add_argument("--walks", type=int, default=50)
    args = parser.parse_args()
    partition = LocalPartition.open(args.partition)
    train = np.random.default_rng(0).permutation(partition.split("train").gids)
    for number in range(args.rounds + 1):  # the first one reads the files
        seeds = np.resize(train[number * args.seeds % len(train) :], args.seeds)
        for way, rule in rules().items():

            def call(rule: WalkRule = rule, way: str = way, seeds: np.ndarray = seeds, key: int = number) -> int:
                walks = local_walks(partition.view, WalkStart(rule=rule, roots=seeds, walks=args.walks, key=key))
                if way != "walk":
                    walks.visits(args.walks, 1, NEIGHBORS, seeds)
                return int(np.count_nonzero(walks.trace >= 0))

            took, steps = cpu_s(call)
            if number:
                report(
                    bench="walks",
                    system="ours",
                    way=way,
                    round=number,
                    m_steps_per_cpu_s=steps / took / 1e6,
                    seeds_per_cpu_s=args.seeds / took,
                )
        if args.dgl and number:
            script = Path(__file__).parent / "peer_dgl_walks.py"
            options = ["--seeds", str(args.seeds), "--walks", str(args.walks), "--round", str(number)]
            subprocess.run([args.dgl, script, args.partition, *options], check=True)
    partition.close()


if __name__ == "__main__":
    main()
