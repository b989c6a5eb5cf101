"""The steps of rows that train: bit for bit as the reference, whatever the threads."""

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError
from glt_lightning.kernels import Adjust, RowSums
from tests.reference import embedding as reference

WIDTHS = [1, 3, 64, 130]


def equal(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


def draw(seed: int, n: int, width: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, rows, n), rng.standard_normal((n, width), np.float32)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("n", "rows"), [(0, 5), (1, 5), (700, 90), (300, 1), (400, 2**62)])
def test_merge(width, n, rows):
    given, values = draw(width, n, width, rows)
    counts = np.random.default_rng(n).integers(1, 9, n)
    for each in (None, counts):
        want = reference.merge_rows(given, values, each)
        for threads in (1, 2, 5):
            got = RowSums.merge(given, values, each, threads=threads)
            for name in ("rows", "sums", "counts"):
                equal(getattr(got, name), getattr(want, name))


def test_merge_of_many_rows_by_threads():
    given, values = draw(3, 200_000, 3, 70_000)
    want = RowSums.merge(given, values)
    assert want.rows.tolist() == np.unique(given).tolist()
    sums = np.zeros((70_000, 3), np.float64)
    np.add.at(sums, given, values)
    np.testing.assert_allclose(want.values, sums[want.rows], rtol=1e-4, atol=1e-5)
    for threads in (2, 3, 7):
        equal(RowSums.merge(given, values, threads=threads).values, want.values)


RULES = {
    "sgd": (RowSums.sgd, reference.sgd_rows, {"lr": 0.1}),
    "adagrad": (RowSums.adagrad, reference.adagrad_rows, {"lr": 0.1, "eps": 1e-10}),
    "rowwise": (RowSums.adagrad, reference.adagrad_rows, {"lr": 0.1, "eps": 1e-10}),
    "adam": (RowSums.adam, reference.adam_rows, {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}),
    "adam_global": (RowSums.adam, reference.adam_rows, {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}),
}
ADJUSTS = [
    Adjust(),
    Adjust(0.37, divisor=3.0),
    Adjust(1.0, 0.5),
    Adjust(2.0, 1.5, 0.8, by_count=True),
]


def states_of(name: str, rows: int, width: int, step: int) -> list:
    full = np.zeros((rows, width), np.float32)
    if name in ("adagrad", "rowwise"):
        return [full if name == "adagrad" else np.zeros((rows, 1), np.float32)]
    if name == "sgd":
        return []
    return [(full, full.copy()), np.zeros(rows, np.int32) if name == "adam" else step]


@pytest.mark.parametrize("adjust", ADJUSTS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", RULES)
def test_steps(name, width, adjust):
    step, plain, rule = RULES[name]
    rows = 60
    weight = np.random.default_rng(1).standard_normal((rows, width), np.float32)
    want, threaded = weight.copy(), weight.copy()
    states = [states_of(name, rows, width, 1) for _ in range(3)]
    for number in range(1, 5):
        if name == "adam_global":
            for each in states:
                each[-1] = number
        given, values = draw(number, 40 * (number != 3), width, rows)  # the third step touches no row
        gradients = RowSums.merge(np.random.default_rng(4).permutation(rows)[:40] if number == 4 else given, values)
        assert (gradients.at is not None) == (number >= 3)  # rows that all differ are not added, so not copied
        for threads in (1, 3):
            squares = gradients.squares(adjust, threads=threads)
            equal(squares, reference.row_squares(gradients, adjust))
        step(gradients, weight, *states[0], **rule, adjust=adjust)
        plain(want, *states[1], gradients, **rule, adjust=adjust)
        step(gradients, threaded, *states[2], **rule, adjust=adjust, threads=3)
    equal(weight, want)
    equal(threaded, want)
    flat = [[*each[0], *each[1:]] if name.startswith("adam") else each for each in states]
    for got, by_threads, expected in zip(flat[0], flat[2], flat[1], strict=True):
        if isinstance(got, np.ndarray):
            equal(got, expected)
            equal(by_threads, expected)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam_global"])
def test_as_torch(name):
    """Of a sparse `nn.Embedding`, within 2 units in the last place of the larger numbers."""
    step, _, rule = RULES[name]
    dense = torch.nn.Embedding(50, 16, sparse=True)
    weight, states = dense.weight.detach().numpy().copy(), states_of(name, 50, 16, 1)
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam_global": torch.optim.SparseAdam}[name]
    optimizer = kind(dense.parameters(), **rule)
    for number in range(1, 6):
        rows, values = draw(number, 30, 16, 50)
        optimizer.zero_grad()
        (dense(torch.from_numpy(rows)) * torch.from_numpy(values)).sum().backward()
        optimizer.step()
        if name == "adam_global":
            states[-1] = number
        step(RowSums.merge(rows, values), weight, *states, **rule)
    np.testing.assert_allclose(weight, dense.weight.detach().numpy(), rtol=3e-7, atol=2e-7)


@pytest.mark.parametrize("rows", [[3, 5], [-1], [2, 2], [3, 1]])
def test_bad_rows_write_nothing(rows):
    weight = np.ones((5, 2), np.float32)
    given = RowSums(np.array(rows, np.int64), np.ones((len(rows), 2), np.float32), np.ones(len(rows), np.int64))
    with pytest.raises(
        DataError, match=r"sgd_rows: row -?[0-9] at position [01]: (the table has the rows 0 to 4|rows have to)"
    ):
        given.sgd(weight, lr=1.0)
    assert (weight == 1).all()
