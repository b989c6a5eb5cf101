"""Memory of two ranks with two sampler processes each, against one copy of the graph: PSS of all six processes.

    python benchmarks/memory.py PARTITION [--channel-size auto]

graph_mb: mapped files of the partition.  batches_mb: batches in flight.  rest_mb: heaps, workspaces and libraries, of which
bare_mb are two interpreters that have imported torch and PyG.  ratio: (graph + rest - bare) / one copy, which is what the
package adds to the ranks, without batches in flight.  ratio_with_bare: the same with the imports.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from measure import memory_mb, process_tree, report


def rank(directory: str, number: int, channel_size: str) -> None:
    """Says when it has imported, and when it has iterated; waits each time to be measured."""
    import torch
    from loader import SPEC, endless

    from glt_lightning import SamplingOptions, Session
    from glt_lightning.workers import Ranks, with_channel_bytes

    torch.set_num_threads(1)
    print("imported", flush=True)
    sys.stdin.readline()
    channel = None if channel_size == "null" else channel_size
    options = with_channel_bytes(SamplingOptions(num_workers=2, channel_size=channel), 2)
    with Session(directory, options, ranks=Ranks(number, 2)) as session:
        stream = endless(session.make_loader(SPEC))
        for _ in range(60):
            batch = next(stream)
            batch.x.sum()
        print("running", flush=True)
        sys.stdin.readline()


def measured(ranks: list[subprocess.Popen[str]]) -> dict[str, float]:
    """Waits until all ranks wait, measures, and lets them go on."""
    for process in ranks:
        assert process.stdout is not None
        if not process.stdout.readline():
            sys.exit(f"a rank ended with exit code {process.wait()}")
    memory = memory_mb([pid for process in ranks for pid in process_tree(process.pid)])
    for process in ranks:
        print(file=process.stdin, flush=True)
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--channel-size", default="auto", help="sampling.channel_size; null for no limit")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return rank(args.partition, args.rank, args.channel_size)
    command = [sys.executable, __file__, args.partition, "--channel-size", args.channel_size, "--rank"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, str(r)], **pipes) for r in (0, 1)]
    try:
        bare, now = measured(ranks), measured(ranks)
    finally:
        for process in ranks:
            process.communicate(timeout=60)
    # edge ids are read only where a batch asks for them
    copy = sum(f.stat().st_size for f in Path(args.partition).rglob("*.npy") if f.stem != "edge_ids") / 1e6
    used = now["graph"] + now["rest"]
    report(
        bench="memory",
        system="ours",
        channel_size=args.channel_size,
        one_copy_mb=copy,
        ratio=(used - bare["rest"]) / copy,
        ratio_with_bare=used / copy,
        bare_mb=bare["rest"],
        **{f"{kind}_mb": mb for kind, mb in now.items()},
    )


if __name__ == "__main__":
    main()
