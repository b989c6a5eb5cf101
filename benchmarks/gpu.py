"""What a GPU does: sampling, gathering, batches through the loader, training; each beside its limit, measured in this run.

    PYTHONPATH=src GLT_KERNELS_DIR=build/gpu python -m benchmarks.gpu [--scale 1.0] [--out FILE.json]

On a graph like ogbn-products that is made on the device (--scale 1: 2.4 M nodes, 124 M directed edges, 100 float32), fan-outs
[15, 10, 5], batches of 1024 seeds. Medians of several rounds after a warm-up, smallest and largest in brackets, by events
of the device. Nothing is timed before its results are those of the CPU. `make gpu-check` builds the kernels and runs it.

Limits: a copy within the device's memory, bytes counted once; a copy from page-locked memory; int32 at random places of an
array as large as the graph's neighbours; over the bus, one sector of 32 bytes per neighbour at the bandwidth of the copy. The
limit of a batch is the sum of its edges at the one and its features at the other.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks import gpu_graph, gpu_loader, gpu_ops
from benchmarks.gpu_measure import Clock, DeviceClock, Limits, Rounds, Spread
from benchmarks.gpu_rows import Row, markdown
from glt_lightning import LocalPartition, Session
from glt_lightning.base import GpuBudgets
from glt_lightning.base.sampling import Memory
from glt_lightning.graph import BatchArrays, DeviceStore, node_path
from glt_lightning.kernels import Kernels

_PEERS = ("pyg_lib", "torch_sparse", "dgl", "cugraph", "pylibcugraph")
# what an H200 is to reach, by where the graph and the attributes lie
_EDGES = {"device": 1.0e9, "uva": 150e6}
_ROWS = {"device": 0.60, "uva": 0.85}
_BATCHES = {"device": 400.0, "uva": 120.0}
_WAIT = 0.10
MEMORIES: tuple[Memory, ...] = ("device", "uva")


class Benchmark:
    """All measures of one device; of a small graph fewer and smaller batches, so that they are quick.

    open_session: makes a `Session` for a kind of memory.  aims: whether the targets are meant for this run.
    """

    def __init__(
        self,
        partition: LocalPartition,
        kernels: Kernels,
        clock: Clock,
        *,
        open_session: Callable[[Memory], Session],
        accelerator: str = "gpu",
        rounds: Rounds | None = None,
        aims: bool = True,
    ) -> None:
        self._partition, self._kernels, self._clock = partition, kernels, clock
        self._open_session, self._accelerator, self._aims = open_session, accelerator, aims
        self._rounds = rounds or Rounds()
        manifest = partition.manifest
        self._large = manifest.num_edges[0] > 10_000_000
        self._batch_size = gpu_ops.BATCH if self._large else 32
        nbytes = (1 << 30) if self._large else (1 << 20)
        self._limits = Limits.measure(kernels.device, clock, self._rounds, nbytes=nbytes, numbers=manifest.num_edges[0])
        self.rows: list[Row] = []
        self.failed: list[str] = []

    def all(self) -> list[Row]:
        """Every row. One that fails is named in ``failed``, and the others are measured."""
        for memory in MEMORIES:
            self._try(f"ops, {memory}", partial(self._ops, memory))
        self._try("plain torch", self._torch)
        for memory in MEMORIES:
            self._try(f"loader, {memory}", partial(self._loader, memory))
        for memory in MEMORIES:
            self._try(f"training, {memory}", partial(self._training, memory))
        return self.rows

    def _try(self, what: str, work: Callable[[], None]) -> None:
        begin = time.monotonic()
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            self.failed.append(f"{what}: {type(error).__name__}: {error}")
        print(f"# {what}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)

    def _ops(self, memory: Memory) -> None:
        store = DeviceStore.open(
            BatchArrays(self._partition, edges=False),
            self._kernels,
            topology=memory,
            features=memory,
            budgets=GpuBudgets(),
        )
        try:
            batches = (40 if memory == "device" else 12) if self._large else 3
            found = gpu_ops.sampling(
                store, self._partition, self._clock, self._rounds, batches=batches, batch_size=self._batch_size
            )
            reads, by = self._reads(memory)
            self._add(f"sampling, graph: {memory}", "M edges/s", found, 1e6, reads, by, _EDGES[memory])
            shards, count = store.node_shards(0, "x"), (1 << 20 if self._large else 1 << 9)
            assert shards is not None
            found = gpu_ops.gather(shards, self._features, self._kernels, self._clock, self._rounds, count=count)
            nbytes, by = self._bytes(memory)
            what = f"gather, rows of 400 bytes: {memory}"
            self._add(what, "GB/s", found, 1e9, nbytes, by, _ROWS[memory], by_limit=True)
        finally:
            store.close()

    def _torch(self) -> None:
        """A peer in the same run."""
        device = self._kernels.device
        peer = gpu_ops.TorchSampler(self._partition, device)
        seeds = torch.from_numpy(self._partition.split("train").gids[: self._batch_size].copy()).to(device)
        found = self._rounds.rate(self._clock, lambda: float(sum(peer.batches(seeds, 10))))
        self._add("plain torch, graph: device", "M edges/s", found, 1e6, *self._reads("device"))
        table = torch.from_numpy(np.array(self._features)).to(device)
        ids = torch.randint(len(table), (1 << 20 if self._large else 1 << 9,), device=device)
        out = table.index_select(0, ids)

        def work() -> float:
            for _ in range(gpu_ops.QUEUED):
                torch.index_select(table, 0, ids, out=out)
            return gpu_ops.QUEUED * out.nbytes

        found = self._rounds.rate(self._clock, work)
        self._add("index_select, rows of 400 bytes: device", "GB/s", found, 1e9, *self._bytes("device"))

    def _loader(self, memory: Memory) -> None:
        with self._open_session(memory) as session:
            batches = (60 if memory == "device" else 25) if self._large else 2
            found, edges, nbytes = gpu_loader.loading(
                session, self._partition, self._clock, self._rounds, batches=batches, batch_size=self._batch_size
            )
        (reads, _), (rate, _) = self._reads(memory), self._bytes(memory)
        limit, by = 1 / (edges / reads + nbytes / rate), f"{edges / 1e3:.0f} k reads and {nbytes / 1e6:.0f} MB"
        self._add(f"loader, batches of 1024: {memory}", "batches/s", found, 1.0, limit, by, _BATCHES[memory])

    def _training(self, memory: Memory) -> None:
        steps, hidden = (60, 256) if self._large else (2, 8)
        folder = self._partition.directory
        rate, share = gpu_loader.training(
            folder, memory, self._accelerator, steps=steps, batch_size=self._batch_size, hidden=hidden
        )
        self._add(f"training, GraphSAGE(256): {memory}", "steps/s", Spread.of([rate]))
        what = f"training, waiting for batches: {memory}"
        self._add(what, "% of the time", Spread.of([share]), 0.01, target=_WAIT, at_most=True)

    def _add(
        self,
        what: str,
        unit: str,
        found: Spread,
        scale: float = 1.0,
        limit: float | None = None,
        limited_by: str = "",
        target: float | None = None,
        *,
        by_limit: bool = False,
        at_most: bool = False,
    ) -> None:
        self.rows.append(
            Row(
                what=what,
                unit=unit,
                found=found,
                scale=scale,
                limit=limit,
                limited_by=limited_by,
                target=target,
                by_limit=by_limit,
                at_most=at_most,
                aims=self._aims,
            )
        )

    @property
    def _features(self) -> np.ndarray:
        return gpu_ops.stored(self._partition, node_path(0, 0, "x"))

    def _reads(self, memory: Memory) -> tuple[float, str]:
        return (self._limits.reads, "random reads") if memory == "device" else (self._limits.bus_reads, "sectors")

    def _bytes(self, memory: Memory) -> tuple[float, str]:
        return (self._limits.copy_bytes, "copy") if memory == "device" else (self._limits.bus_bytes, "host to device")


def notes(partition: LocalPartition, failed: list[str]) -> str:
    here = [name for name in _PEERS if importlib.util.find_spec(name)]
    manifest = partition.manifest
    lines = [
        f"{manifest.num_nodes[0]:,} nodes, {manifest.num_edges[0]:,} directed edges; [15, 10, 5], medians of rounds after a "
        "warm-up, every result compared with the CPU's before it was timed. Limits: see benchmarks/gpu.py.",
        f"Other samplers: {', '.join(here)} can be imported, and were not measured."
        if here
        else f"Other samplers: none of {', '.join(_PEERS)} can be imported here; plain torch is the peer.",
    ]
    return "\n\n".join(lines + [f"FAILED: {line}" for line in failed])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kernels = Kernels.open("cuda:0")
    device, stream = kernels.device, torch.cuda.Stream(kernels.device)
    name = torch.cuda.get_device_name(device)
    with tempfile.TemporaryDirectory() as folder, torch.cuda.stream(stream):
        begin = time.monotonic()
        partition = gpu_graph.make(Path(folder), args.scale, device)
        torch.cuda.empty_cache()
        print(f"# graph: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
        benchmark = Benchmark(
            partition,
            kernels,
            DeviceClock(device),
            open_session=lambda memory: gpu_loader.open_session(partition, memory, device),
            aims="H200" in name and args.scale == 1.0,
        )
        rows = benchmark.all()
        said = notes(partition, benchmark.failed)
    text = markdown(rows)
    print(f"{name}\n\n{text}\n\n{said}", flush=True)
    if args.out is not None:
        what = {"gpu": name, "scale": args.scale, "rows": [row.to_json() for row in rows]}
        args.out.write_text(json.dumps(what | {"markdown": text, "notes": said}, indent=1) + "\n")
    return 1 if benchmark.failed else 0


if __name__ == "__main__":
    sys.exit(main())
