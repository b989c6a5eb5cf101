"""GPUs that are not here: their published figures, what a step does, and what it then takes there. Nothing of it was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from glt_lightning.base import OptionError
from glt_lightning.graph import BatchArrays
from glt_lightning.lightning.planner.rules import BatchCost

COMPUTED = "computed, not measured"
# Shares of the published figures that are reached: of the low, the mid and the high end of a plan. Assumed.
EFFICIENCIES = (0.8, 0.5, 0.3)
LAUNCH_S = 1e-5  # of Python and torch, for each operation on the GPU. Assumed.
CONTEXT_BYTES = 600e6  # of CUDA and its libraries. Assumed.
# Of a batch that the GPU samples: seconds of Python and of launches, and memory traffic per edge, four sectors of 32 bytes.
# Both are computed from the kernels' machine code.
SAMPLE_S, EDGE_BYTES = 4e-4, 128
BUS_SECTOR = 32  # bytes that a GPU reads of the host at least


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Figures that the maker publishes. memory: bytes.  bytes_per_s: of its memory.  flops, half_flops: of dense products in
    float32 and in bfloat16.  bus_bytes_per_s: from the host, each way.  link_bytes_per_s: to other GPUs, each way; None: over
    the bus."""

    name: str
    memory: float
    bytes_per_s: float
    flops: float
    half_flops: float
    bus_bytes_per_s: float
    link_bytes_per_s: float | None = None

    @property
    def sums_bytes_per_s(self) -> float:
        """Speed of sums over the GPUs of a host."""
        return EFFICIENCIES[1] * (self.link_bytes_per_s or self.bus_bytes_per_s)


GPUS = {
    each.name: each
    for each in (
        Gpu(name="L4", memory=24e9, bytes_per_s=300e9, flops=30.3e12, half_flops=121e12, bus_bytes_per_s=32e9),
        Gpu(name="L40S", memory=48e9, bytes_per_s=864e9, flops=91.6e12, half_flops=362e12, bus_bytes_per_s=32e9),
        Gpu(
            name="A100",
            memory=80e9,
            bytes_per_s=2.04e12,
            flops=19.5e12,
            half_flops=312e12,
            bus_bytes_per_s=32e9,
            link_bytes_per_s=300e9,
        ),
        Gpu(
            name="H100",
            memory=80e9,
            bytes_per_s=3.35e12,
            flops=67e12,
            half_flops=989e12,
            bus_bytes_per_s=64e9,
            link_bytes_per_s=450e9,
        ),
        Gpu(
            name="H200",
            memory=141e9,
            bytes_per_s=4.8e12,
            flops=67e12,
            half_flops=989e12,
            bus_bytes_per_s=64e9,
            link_bytes_per_s=450e9,
        ),
    )
}


class StepWork(TorchDispatchMode):
    """Counts what is done in its context. flops: of products.  nbytes: that operations read and write, if each brings its
    arguments from memory.  launches: operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops, self.nbytes, self.launches = 0.0, 0.0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not func.is_view:
            self.launches += 1
            self.nbytes += _moved(func, args, kwargs, out)
            count: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
            self.flops += count(*args, **kwargs, out_val=out) if count is not None else 0
        return out

    def of(self, batch: BatchCost) -> BatchCost:
        """The cost of a batch with this work."""
        return replace(batch, flops=self.flops, moved_bytes=self.nbytes, launches=self.launches)


_BY_ROW = ("index", "index_select", "embedding", "gather")  # read the rows that they return


def _moved(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    tensors = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, torch.Tensor)]
    nbytes = sum(each.nbytes for each in tensors)
    if func.overloadpacket.__name__ in _BY_ROW:
        return nbytes + out.nbytes - args[0].nbytes
    if func.namespace == "glt_lightning" and args[0].dim() and len(args[0]):  # neighbours: a row for each edge
        edges = max(
            (len(each) for each in tensors if each.dtype in (torch.int32, torch.int64) and each.dim()), default=0
        )
        return nbytes + max(0, edges - len(args[0])) * args[0][0].nbytes
    return nbytes


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """Bytes of one GPU, by what takes them. work: activations.  batches: those in training and ahead of it."""

    context: float
    model: float
    work: float
    batches: float
    graph: float
    attributes: float

    @property
    def needed(self) -> float:
        return sum(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True, kw_only=True)
class OnGpu:
    """Ranks that train on a GPU each. half: products are in 16 bits.  samples: the GPU samples, too.  graph, attributes: bytes of
    the parts of a host on the GPU; graph_beyond, attributes_beyond: shares that it reads from the host, from ``locked`` bytes
    there."""

    gpu: Gpu
    half: bool
    samples: bool
    graph: float = 0.0
    attributes: float = 0.0
    graph_beyond: float = 0.0
    attributes_beyond: float = 0.0
    locked: float = 0.0

    def cost(self, batch: BatchCost, efficiency: float) -> BatchCost:
        """A batch of this work on the GPU; samplers on the CPU take as long as they were measured."""
        gpu = self.gpu
        memory_s, bus_s = 1 / (efficiency * gpu.bytes_per_s), 1 / (efficiency * gpu.bus_bytes_per_s)
        work_s = batch.flops / (efficiency * (gpu.half_flops if self.half else gpu.flops))
        launched_s = batch.launches * LAUNCH_S
        step = {"step_s": max(launched_s, work_s + batch.moved_bytes * memory_s), "step_cpu_s": launched_s}
        step["summed_cpu_s"] = 0.0  # GPUs sum up
        if not self.samples:
            return replace(batch, copy_s=batch.nbytes * bus_s, **step)
        over_bus = self.graph_beyond * batch.edges * BUS_SECTOR + self.attributes_beyond * batch.row_bytes
        return replace(
            batch,
            sample_s=SAMPLE_S + batch.edges * EDGE_BYTES * memory_s,
            gather_s=2 * batch.row_bytes * memory_s,
            collate_s=0.0,
            copy_s=over_bus * bus_s,
            **step,
        )

    def memory(self, model: float, work: float, batches: float) -> GpuMemory:
        """batches: bytes of those that are there at a time."""
        return GpuMemory(
            context=CONTEXT_BYTES,
            model=model,
            work=work,
            batches=batches,
            graph=self.graph,
            attributes=self.attributes,
        )

    def require(self, memory: GpuMemory, batch_size: int) -> None:
        """Raises `OptionError` for ranks that do not fit on their GPUs."""
        if memory.needed <= self.gpu.memory:
            return
        parts = ", ".join(f"{each.name} {getattr(memory, each.name) / 1e9:,.2f} GB" for each in fields(memory))
        held = "lower sampling.topology_bytes and sampling.feature_bytes, or " if self.graph + self.attributes else ""
        raise OptionError(
            f"memory: a GPU of this job needs {memory.needed / 1e9:,.2f} GB ({parts}; {COMPUTED}), and the {self.gpu.name} has "
            f"{self.gpu.memory / 1e9:,.0f} GB. What would fit: {held}a smaller data.batch_size than {batch_size}."
        )


def on_gpu(gpu: Gpu, arrays: BatchArrays, data: Any, precision: object, *, samples: bool, parameters: float) -> OnGpu:
    """Ranks on such a GPU. arrays: of the parts of a host.  parameters: bytes of the model, which is on the GPU before the graph.
    Raises `OptionError` for a graph that is to be there and does not fit."""
    half = "16" in str(precision)
    if not samples:
        return OnGpu(gpu=gpu, half=half, samples=False)
    need, free = arrays.need, int(gpu.memory - CONTEXT_BYTES - parameters)
    placed = arrays.placed(data.sampling, data.cache, free)
    locked = sum(getattr(need, kind) for kind in placed.on_host)
    return OnGpu(
        gpu=gpu,
        half=half,
        samples=True,
        graph=placed.topology_bytes,
        attributes=placed.features_bytes,
        graph_beyond=1 - placed.topology_bytes / need.topology if need.topology else 0.0,
        attributes_beyond=1 - placed.features_bytes / need.features if need.features else 0.0,
        locked=locked,
    )
