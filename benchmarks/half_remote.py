"""A batch of which an owner in the same process gathers half of the rows, beside a local one: the cost without a wire.

    python benchmarks/half_remote.py PARTITION [--batches 12] [--rounds 3]

PARTITION has two parts. CPU ms of one thread per batch of [15, 10, 5] x 1024, drawn and written. In the half-remote one,
questions and replies are encoded, written into memory of their own and stitched as between hosts, and are not sent.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import numpy as np
from measure import report

from glt_lightning import LocalPartition
from glt_lightning.loader.traffic.options import TrafficOptions, TrainBatches
from glt_lightning.sampling import KHopSampler, OwnedParts, OwnerQuestion, Received, converse
from glt_lightning.workers.transport.message import Recycler, lay_out, pack


class OwnerHere:
    """The `RemoteRows` whose other owner is this process."""

    num_owners = 2
    owner_of_part = np.array([0, 1], dtype=np.int32)

    def __init__(self, partition: LocalPartition) -> None:
        self._parts, self._memory = OwnedParts(partition), Recycler(16)

    def ask(self, owner: int, question: OwnerQuestion[Any]) -> Callable[[], Any]:
        return converse(question, self._send)

    def _send(self, question: OwnerQuestion[Any]) -> Callable[[], Received]:
        header, arrays = question.to_wire()
        pack(arrays)
        reply = question.work(header, arrays, self._parts).reply(lambda: None)
        layout, nbytes = lay_out(reply.shapes)
        body = self._memory.take(nbytes)
        found = {place.name: place.view(body) for place in layout}
        reply.write(found)
        return lambda: Received(reply.header, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--batches", type=int, default=12, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    partition = LocalPartition.open(args.partition)
    batches = TrainBatches(partition, TrafficOptions(num_neighbors=[15, 10, 5], batch_size=1024))
    samplers = {
        "local": KHopSampler(partition, batches.config),
        "half remote": KHopSampler(partition, batches.config, remote=OwnerHere(partition)),
    }
    requests = cycle(list(batches.plan("global", 0).requests(0)))
    memory = np.zeros(0, dtype=np.uint8)
    spent: dict[str, list[float]] = {name: [] for name in samplers}
    for number in range(1 + args.rounds):
        drawn = list(islice(requests, args.batches))
        for name, sampler in samplers.items():
            begin = time.thread_time()
            for request in drawn:
                draft = sampler.draft(request)
                if draft.nbytes > len(memory):
                    memory = np.zeros(2 * draft.nbytes, dtype=np.uint8)
                draft.write(memory)
                del draft
            if number:  # the first round warms
                spent[name].append(1e3 * (time.thread_time() - begin) / args.batches)
    for name, values in spent.items():
        report(bench="half_remote", of=name, cpu_ms=statistics.median(values), least=min(values), most=max(values))


if __name__ == "__main__":
    main()
