"""Plans of GPUs that are not here: by hand from published figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from glt_lightning.base import OptionError
from glt_lightning.lightning import Machines
from glt_lightning.lightning.planner.gpus import (
    CONTEXT_BYTES,
    EDGE_BYTES,
    GPUS,
    LAUNCH_S,
    SAMPLE_S,
    Gpu,
    OnGpu,
    StepWork,
)
from glt_lightning.lightning.planner.rules import BatchCost, Connection, Layout, RemoteCost, expect_epoch, phase
from glt_lightning.loader import aggregate

GPU = Gpu(name="X", memory=1e9, bytes_per_s=200, flops=20, half_flops=80, bus_bytes_per_s=40, link_bytes_per_s=10)
COST = BatchCost(
    edges=10, row_bytes=100, nbytes=200, sample_s=1, gather_s=2, collate_s=3, step_s=9, step_cpu_s=9,
    flops=100, moved_bytes=300, launches=2,
)  # fmt: skip


def test_the_work_of_a_step_is_counted() -> None:
    x, weight = torch.ones(8, 4), torch.ones(3, 4, requires_grad=True)
    with StepWork() as work:
        out = x @ weight.T  # a view, and a product
    assert (work.flops, work.launches) == (2 * 8 * 4 * 3, 1)
    assert work.nbytes == 4 * (8 * 4 + 4 * 3 + 8 * 3)
    with StepWork() as work:
        out.sum().backward()
    assert work.flops == 2 * 8 * 4 * 3  # the gradient of the weight
    with StepWork() as work:
        x.index_select(0, torch.tensor([1, 1]))
    assert work.nbytes == 2 * 4 * 4 + 2 * 8 + 2 * 4 * 4  # two rows, their numbers, two rows
    indptr, src = torch.tensor([0, 20, 20]), torch.zeros(20, dtype=torch.int64)
    with StepWork() as work:
        aggregate(x, indptr, src, kind="sum")
    assert work.nbytes >= 20 * 4 * 4 + 20 * 8  # a row for each edge


def test_batches_on_a_gpu() -> None:
    by_cpu = OnGpu(gpu=GPU, half=False, samples=False).cost(COST, 0.5)
    assert by_cpu == replace(COST, copy_s=200 / 20, step_s=100 / 10 + 300 / 100, step_cpu_s=2 * LAUNCH_S)
    assert OnGpu(gpu=GPU, half=True, samples=False).cost(COST, 0.5).step_s == 100 / 40 + 300 / 100
    slow = OnGpu(gpu=GPU, half=False, samples=False).cost(replace(COST, launches=1e9), 0.5)
    assert slow.step_s == slow.step_cpu_s == 1e9 * LAUNCH_S
    here = OnGpu(gpu=GPU, half=False, samples=True, attributes_beyond=0.5, graph_beyond=0.25).cost(COST, 0.5)
    assert (here.sample_s, here.gather_s) == (SAMPLE_S + 10 * EDGE_BYTES / 100, 2 * 100 / 100)
    assert (here.collate_s, here.copy_s) == (0, (0.25 * 10 * 32 + 0.5 * 100) / 20)


def test_an_epoch_on_gpus() -> None:
    """Copies are the trainer's, what a GPU samples takes no core, and it waits for owners meanwhile."""
    cost = replace(COST, copy_s=5)
    copied = expect_epoch(cost, 4, Layout(workers=8, cores=99))
    assert (copied.copy_s, copied.elapsed_s) == (4 * 5, pytest.approx(4 * (3 + 5 + 9) + 3))
    layout = Layout(cores=1, gpu_samples=True, hosts=2, bytes_per_s=1.0, concurrency=4)
    here = phase(cost, 1, layout)
    assert (here.period_s, here.trainer_cpu_s, here.stretch) == pytest.approx((1 + 2 + 3 + 5 + 9, 3 + 9, 1), rel=1e-3)
    remote = RemoteCost(nbytes=400, requests=1, rounds=1)
    assert phase(cost, 1, layout, remote, Connection()).period_s == 400 / 4
    sums = Layout(ranks=2, parameter_bytes=100, sums_bytes_per_s=GPU.sums_bytes_per_s)
    assert sums.gradients_s == pytest.approx(100 / 5, rel=1e-3)


def test_a_gpu_with_too_little_memory() -> None:
    on = OnGpu(gpu=GPU, half=False, samples=True, graph=1e8, attributes=1e8)
    fits = on.memory(1e8, 5e7, 5e7)
    on.require(fits, 64)
    assert fits.needed == CONTEXT_BYTES + 4e8
    with pytest.raises(
        OptionError, match=r"a GPU of this job needs 1.05 GB .*; computed, not measured\), and the X has 1 GB"
    ):
        on.require(on.memory(1e8, 5e7, 1e8), 64)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"gpus": 2}, "--gpus: say which they are, with --gpu L4|L40S|A100|H100|H200, or name a --machine"),
        ({"gpu": "H100"}, "--gpu: say how many there are of each host, with --gpus."),
        ({"gpus": 2, "gpu": "H10"}, "--gpu: expected one of L4, L40S, A100, H100, H200; got 'H10'. Did you mean H100?"),
        ({"gpus": 9, "machine": "p5.48xlarge"}, "--gpus: p5.48xlarge has 8; got 9."),
        ({"gpus": 1, "machine": "r7i.8xlarge", "gpu": "L4"}, "--gpus: r7i.8xlarge has 0; got 1."),
        ({"gpus": 2, "machine": "p5.48xlarge", "gpu": "L4"}, "--gpu: p5.48xlarge has H100; got L4."),
        ({"gpus": 0, "gpu": "L4"}, "--gpus: expected at least 1, got 0."),
        ({"gpus": 2, "gpu": "L4", "ranks": 3}, "--ranks: each of the 2 GPUs has one rank; got 3."),
    ],
)
def test_refused_machines(given: dict[str, Any], line: str) -> None:
    with pytest.raises(OptionError) as error:
        Machines(**given)
    assert line in str(error.value)


def test_machines_with_gpus() -> None:
    rented = Machines(machine="p5.48xlarge", gpus=4)
    assert (rented.on, rented.ranks, rented.cores) == (GPUS["H100"], 4, 192)
    assert Machines(machine="p5.48xlarge").on is None  # steps on its cores
