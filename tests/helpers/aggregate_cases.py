"""What a device must do when it aggregates: random edges, each result bit for bit that of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from glt_lightning.base import DataError
from glt_lightning.kernels import KINDS, CudaEdges, Kernels
from glt_lightning.loader.aggregation import edges_of

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
WIDTHS = [1, 2, 3, 7, 16, 17, 31, 32, 33, 48, 65]
ROWS = [0, 1, 2, 7, 8, 9, 31, 33]


def random_edges(rng: np.random.Generator) -> tuple[Tensor, Tensor, int]:
    """indptr, src, number of sources: empty rows, sometimes a hub among the destinations or the sources, and edges before the
    first row and behind the last."""
    degrees = rng.integers(0, 6, int(rng.choice(ROWS)))
    degrees[rng.random(len(degrees)) < 0.2] = 0
    if len(degrees) and rng.integers(2):
        degrees[rng.integers(len(degrees))] = 70
    before, behind = (int(n) for n in rng.choice([0, 0, 3], 2))
    indptr = before + np.concatenate([[0], np.cumsum(degrees)])
    sources = int(rng.integers(1, 20))
    src = (rng.random(indptr[-1] + behind) ** int(rng.choice([1, 4])) * sources).astype(np.int64)
    return torch.from_numpy(indptr), torch.from_numpy(src), sources


def any_values(rng: np.random.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Of few values, so that maxima are shared, or of any."""
    values = rng.integers(-3, 4, shape) + 0.5 if rng.integers(2) else rng.standard_normal(shape)
    return torch.from_numpy(values).to(dtype)


class Aggregation:
    """The three calls on the CPU, and on a device; each gives what it has written."""

    def __init__(self, indptr: Tensor, src: Tensor | None, num_sources: int, weights: Tensor | None) -> None:
        self.indptr, self.src, self.num_sources, self.weights = indptr, src, num_sources, weights

    def on_cpu(self, name: str, kind: str, out: Tensor, *given: Tensor | None) -> Tensor:
        addresses = [None if tensor is None else tensor.data_ptr() for tensor in (*given, out)]
        getattr(self._edges(given[0], self.indptr, self.src), name)(kind, *addresses)
        return out

    def on_device(self, kernels: Kernels, name: str, kind: str, out: Tensor, *given: Tensor | None) -> Tensor:
        indptr, src, out, *given = (
            None if tensor is None else tensor.clone() if kernels.device.type == "cpu" else tensor.to(kernels.device)
            for tensor in (self.indptr, self.src, out, *given)
        )
        edges = CudaEdges(kernels, self._edges(given[0], indptr, src), indptr, src)
        getattr(edges, name)(kind, *given, out)
        edges.check()
        return out.cpu()

    def _edges(self, rows: Tensor, indptr: Tensor, src: Tensor | None):
        return edges_of(rows, len(self.indptr) - 1, self.num_sources, indptr, src, self.weights)


def check_aggregate(kernels: Kernels, seed: int) -> None:
    """Forward, and backward to the rows and the weights."""
    rng = np.random.default_rng(seed)
    dtype, kind = DTYPES[seed % 3], list(KINDS)[seed // 3 % 4]
    indptr, src, num_sources = random_edges(rng)
    if rng.integers(4) == 0:  # a row for each edge
        src, num_sources = None, len(src)
    num_edges = num_sources if src is None else len(src)
    heads = int(rng.choice([1, 1, 3, 4]))
    width = heads * int(rng.choice(WIDTHS))
    weighted = kind in ("sum", "mean") and bool(rng.integers(2))
    weights = any_values(rng, dtype, num_edges, heads) if weighted else None
    op = Aggregation(indptr, src, num_sources, weights)
    x, grad = any_values(rng, dtype, num_sources, width), any_values(rng, dtype, len(indptr) - 1, width)

    def same(name: str, shape: tuple[int, ...], *given: Tensor | None) -> Tensor:
        room = torch.full(shape, 77, dtype=dtype)
        want, got = op.on_cpu(name, kind, room.clone(), *given), op.on_device(kernels, name, kind, room, *given)
        assert torch.equal(got, want), f"{name} of {kind}, {dtype}, width {width}, heads {heads}"
        return want

    out = same("aggregate", tuple(grad.shape), x, weights)
    extreme = (x, out) if kind in ("max", "min") else (None, None)
    same("grad", tuple(x.shape), grad, weights, *extreme)
    if weights is not None:
        same("weights_grad", tuple(weights.shape), grad, x)


def check_nan_and_no_values(kernels: Kernels, dtype: torch.dtype) -> None:
    """NaN is an extreme wherever it stands, as in torch."""
    x = torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [3.0, float("-inf")]], dtype=dtype)
    op = Aggregation(torch.tensor([0, 2, 2, 3]), torch.tensor([0, 1, 2]), 3, None)
    for kind in KINDS:
        room = torch.zeros(3, 2, dtype=dtype)
        want, got = (
            op.on_cpu("aggregate", kind, room.clone(), x, None),
            op.on_device(kernels, "aggregate", kind, room, x, None),
        )
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def check_refused(kernels: Kernels, seed: int) -> None:
    """Edges that contradict themselves are told, and nothing is read or written by them."""
    indptr, src = ([0, 2, 4], [0, 1, 2, 1])
    if seed % 2:
        src[seed // 2 % 4] = (-1, 3, 2**40)[seed % 3]
    else:
        indptr = [[0, 5, 4], [0, 3, 2], [-1, 2, 4], [0, 2, 2**40]][seed // 2 % 4]
    weights = torch.ones(4, 1)
    op = Aggregation(torch.tensor(indptr), torch.tensor(src), 3, weights)
    x, grad = torch.ones(3, 5), torch.ones(2, 5)
    for name, out, given in (
        ("aggregate", grad, (x, weights)),
        ("grad", x, (grad, weights, None, None)),
        ("weights_grad", weights, (grad, x)),
    ):
        with pytest.raises(DataError) as on_cpu:
            op.on_cpu(name, "mean", out.clone(), *given)
        with pytest.raises(DataError) as on_device:
            op.on_device(kernels, name, "mean", out.clone(), *given)
        where = "src: edge" if seed % 2 else "indptr: expected ascending positions up to 4"
        assert where in str(on_cpu.value)
        assert where in str(on_device.value)
