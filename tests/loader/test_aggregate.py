"""The kernels of aggregation against torch's scatter, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from glt_lightning.base import DataError
from glt_lightning.loader import aggregate
from glt_lightning.loader.aggregation import edge_scores
from tests.helpers import run_script

KINDS = ["sum", "mean", "max", "min"]
TORCH = {"max": "amax", "min": "amin"}


def small_graph(destinations: int = 9, sources: int = 14, edges: int = 60) -> tuple[Tensor, Tensor]:
    """indptr with an empty row in the middle and one at the end, and src, of which not all are met."""
    made = torch.Generator().manual_seed(0)
    col = torch.randint(destinations - 1, (edges,), generator=made).sort().values
    col[col == 3] = 4
    indptr = torch.searchsorted(col.contiguous(), torch.arange(destinations + 1))
    return indptr, torch.randint(sources - 2, (edges,), generator=made)


def scattered(x: Tensor, indptr: Tensor, src: Tensor | None, kind: str, weights: Tensor | None = None) -> Tensor:
    rows = x if src is None else x[src]
    if weights is not None:
        rows = (rows.view(len(rows), weights.size(1), -1) * weights[:, :, None]).view(rows.shape)
    col = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    index = col.view(-1, *[1] * (x.dim() - 1)).expand(rows[: len(col)].shape)
    out = torch.zeros(len(indptr) - 1, *x.shape[1:], dtype=x.dtype)
    return out.scatter_reduce(0, index, rows[: len(col)], TORCH.get(kind, kind), include_self=False)


@pytest.mark.parametrize("shape", [(1,), (7,), (64,), (100,), (3, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_scatter(kind: str, shape: tuple[int, ...]) -> None:
    indptr, src = small_graph()
    # Many are equal, so extremes share their gradient. None is 0: torch lets the zeros that it begins with share in it, too.
    x = (torch.randint(-3, 4, (14, *shape), dtype=torch.float64) + 0.5).requires_grad_()
    y = x.detach().clone().requires_grad_()
    out, expected = aggregate(x, indptr, src, kind=kind), scattered(y, indptr, src, kind)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn(out.shape, dtype=out.dtype)
    out.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    """bfloat16 is summed in float32 and rounded once, so it is half a unit of the last place away."""
    indptr, src = small_graph()
    x = torch.randn(14, 20).to(dtype).requires_grad_()
    y = x.detach().double().requires_grad_()
    out, expected = aggregate(x, indptr, src, kind=kind), scattered(y, indptr, src, kind)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=1e-6)
    out.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(x.grad.double(), y.grad, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: str, heads: int) -> None:
    indptr, src = small_graph(edges=20)
    x = torch.randn(14, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(20, heads, dtype=torch.float64, requires_grad=True) if kind in ("sum", "mean") else None
    torch.autograd.gradcheck(lambda x, w: aggregate(x, indptr, src, kind=kind, weights=w), (x, weights))
    if weights is not None:
        out, expected = aggregate(x, indptr, src, kind=kind, weights=weights), scattered(x, indptr, src, kind, weights)
        torch.testing.assert_close(out, expected)
    opcheck(torch.ops.glt_lightning.aggregate, (x, indptr, src, weights, kind))


@pytest.mark.parametrize("heads", [1, 3])
def test_scores_of_edges(heads: int) -> None:
    indptr, src = small_graph(edges=20)
    dst = torch.repeat_interleave(torch.arange(9), indptr.diff())
    q = torch.randn(9, heads, 4, dtype=torch.float64, requires_grad=True)
    k = torch.randn(14, heads, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(edge_scores(q, k, indptr, src), (q[dst] * k[src]).sum(-1))
    torch.autograd.gradcheck(lambda q, k: edge_scores(q, k, indptr, src), (q, k))
    op, shape = torch.ops.glt_lightning.aggregate_weights_grad, torch.zeros(20, heads, dtype=torch.float64)
    torch.autograd.gradcheck(lambda q, k: op(q, k, indptr, src, shape, "mean"), (q, k))
    opcheck(op, (q, k, indptr, src, shape, "sum"))


def test_a_row_for_each_edge_and_a_prefix_of_the_edges() -> None:
    """Without src; pointers that leave the last edges out give those no gradient."""
    indptr, _ = small_graph()
    x, weights = torch.randn(60, 4, requires_grad=True), torch.randn(60, requires_grad=True)
    out = aggregate(x, indptr[:5], kind="sum", weights=weights)
    torch.testing.assert_close(out, scattered(x * weights[:, None], indptr[:5], None, "sum"))
    out.sum().backward()
    assert torch.equal(x.grad[indptr[4] :], torch.zeros(60 - indptr[4], 4))
    assert not weights.grad[indptr[4] :].any()
    assert weights.grad[: indptr[4]].all()


def test_threads_change_no_bit() -> None:
    indptr, src = small_graph(destinations=3000, sources=4000, edges=40_000)
    x, weights = torch.randn(4000, 96, requires_grad=True), torch.randn(40_000, 3, requires_grad=True)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            out = [aggregate(x, indptr, src, kind=kind) for kind in KINDS]
            out.append(aggregate(x, indptr, src, weights=weights))
            found.append([*out, *torch.autograd.grad(sum(o.sin().sum() for o in out), [x, weights])])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_compiles_without_a_break() -> None:
    indptr, src = small_graph()
    x = torch.randn(14, 6, requires_grad=True)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(x: Tensor) -> Tensor:
        return aggregate(x.relu(), indptr, src, kind="mean").sum()

    expected = torch.autograd.grad(aggregate(x.relu(), indptr, src, kind="mean").sum(), x)
    assert torch.equal(torch.autograd.grad(run(x), x)[0], expected[0])


def test_autocast_leaves_rows_as_they_are() -> None:
    indptr, src = small_graph()
    with torch.autocast("cpu", torch.bfloat16):
        assert aggregate(torch.randn(14, 6), indptr, src).dtype == torch.float32
        assert aggregate(torch.randn(14, 6).bfloat16(), indptr, src, weights=torch.rand(60)).dtype == torch.bfloat16


@pytest.mark.parametrize("op", ["aggregate", "aggregate_grad", "aggregate_weights_grad"])
@pytest.mark.parametrize("device", ["CPU", "CUDA", "Meta", "Autograd"])
def test_each_op_is_there_for_each_device(op: str, device: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"glt_lightning::{op}", device)


LOOKED_AT = """
import inspect, sys, torch, torch_geometric
from types import ModuleType
for k in range(300):
    sys.modules[f"other{k}"] = ModuleType(f"other{k}")
    sys.modules[f"other{k}"].__file__ = f"/other/{k}.py"
asked, real = [], inspect.getabsfile
inspect.getabsfile = lambda *given: asked.append(given) or real(*given)
import glt_lightning.loader
print("RESULT", len(asked))
"""


@pytest.mark.slow
def test_making_the_ops_does_not_look_through_all_modules() -> None:
    (line,) = [line for line in run_script(LOOKED_AT).stdout.splitlines() if line.startswith("RESULT ")]
    assert int(line.split()[1]) < 100


def test_nothing_to_aggregate() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert torch.equal(aggregate(torch.ones(3, 2), torch.zeros(4, dtype=torch.int64), none), torch.zeros(3, 2))
    assert aggregate(torch.ones(0, 2), torch.zeros(1, dtype=torch.int64), none).shape == (0, 2)
    assert torch.equal(aggregate(torch.ones(2, 0), torch.tensor([0, 1]), torch.tensor([1])), torch.ones(1, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "median"}, "kind: expected one of sum, mean, max, min; got 'median'"),
        (
            {"x": torch.ones(14, 4, dtype=torch.float16)},
            "x: expected rows of float32, float64, bfloat16; got torch.float16",
        ),
        ({"indptr": torch.tensor([0.0])}, "indptr: expected int64"),
        ({"indptr": torch.tensor([0, 99])}, "indptr: expected ascending positions up to 60; got 0, 99 for row 0"),
        ({"indptr": torch.tensor([0, 2, 1])}, "indptr: expected ascending positions up to 60; got 2, 1 for row 1"),
        ({"src": torch.full((60,), 14)}, "src: edge 0 comes from row 14; there are 14 rows"),
        ({"src": torch.full((60,), -1)}, "src: edge 0 comes from row -1; there are 14 rows"),
        ({"x": torch.ones(14, 4, device="meta")}, "indptr: expected it on meta, as x; got cpu"),
        ({"weights": torch.ones(59)}, r"weights: expected \[60\] or \[60, H\], H a divisor of 4; got \[59\]"),
        ({"weights": torch.ones(60, 3)}, r"got \[60, 3\]"),
        ({"weights": torch.ones(60), "kind": "max"}, "weights: expected None where kind is max"),
    ],
)
def test_mistakes(change: dict[str, Any], message: str) -> None:
    indptr, src = small_graph()
    arguments: dict[str, Any] = {"x": torch.ones(14, 4), "indptr": indptr, "src": src, **change}
    with pytest.raises(DataError, match=message):
        aggregate(**arguments)
