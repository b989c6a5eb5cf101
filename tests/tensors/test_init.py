"""First values of a tensor depend on the seed, its name, the user's id and the column alone."""

from __future__ import annotations

import hashlib
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from glt_lightning import DistGraph, DistTensor
from glt_lightning.base import DataError
from glt_lightning.tensors.init import bits_of, normal, standard_normal, uniform
from tests.helpers.partitions import partitioned, small_graph

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def _reference_bits(seed: int, name: str, user_id: int, column: int) -> int:
    """Normative: the random bits of one value."""
    digest = int.from_bytes(hashlib.blake2b(f"tensor {name}".encode(), digest_size=8).digest(), "little")
    row = _mix((_mix(seed ^ _mix(digest)) + (user_id + 1) * _GOLDEN) & _MASK)
    return _mix((row + (column + 1) * _GOLDEN) & _MASK)


def test_bits_equal_the_reference() -> None:
    ids = np.array([0, 1, 5, 2**40])
    found = bits_of(7, "h", ids, 3)
    assert found.tolist() == [[_reference_bits(7, "h", i, c) for c in range(3)] for i in ids.tolist()]


def test_uniform_is_of_the_upper_24_bits_and_reaches_its_bounds() -> None:
    ends = np.array([0, _MASK], dtype=np.uint64)
    assert uniform(ends, -1.0, 3.0).tolist() == [-1.0, np.float32(-1 + 4 * (1 - 2.0**-24))]
    values = uniform(bits_of(0, "h", np.arange(1 << 16), 4), 0.0, 1.0)
    assert values.dtype == np.float32
    assert values.min() < 1e-4
    assert values.max() > 1 - 1e-4
    assert abs(values.mean() - 0.5) < 3e-3


def test_normal_is_the_inverse_of_the_distribution() -> None:
    p = np.random.default_rng(0).random(1000)
    p = np.concatenate([p, p * 1e-3, p * 1e-14, 1 - p * 1e-9, [2.0**-53, 1 - 2.0**-53, 0.5]])
    expected = [statistics.NormalDist().inv_cdf(each) for each in p.tolist()]
    np.testing.assert_allclose(standard_normal(p), expected, rtol=2e-15, atol=1e-15)
    values = normal(bits_of(0, "h", np.arange(1 << 16), 2), 2.0, 0.5)
    assert abs(values.mean() - 2) < 5e-3
    assert abs(values.std() - 0.5) < 5e-3
    ends = normal(np.array([0, _MASK], dtype=np.uint64), 0.0, 1.0)
    assert np.isfinite(ends).all()
    assert ends[0] == -ends[1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("init")
    for parts in (1, 2, 7):
        partitioned(small_graph(), folder, parts).close()
    return {parts: folder / f"parts{parts}" for parts in (1, 2, 7)}


def _by_user_id(folder: Path, init: object, dtype: torch.dtype, of: object = "node", seed: int = 0) -> torch.Tensor:
    with DistGraph(folder, seed=seed) as graph:
        rows = graph.space(of).num_rows
        tensor = DistTensor((rows, 5), dtype, "h", init, of=of)
        order = graph.user_ids(torch.arange(rows), of).argsort()
        return tensor[order]


@pytest.mark.parametrize("init", [("uniform", -2, 3), ("normal", 1.0, 0.1), "xavier_uniform", "ones"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_do_not_depend_on_the_parts(folders: dict[int, Path], init: object, dtype: torch.dtype) -> None:
    found = [_by_user_id(folder, init, dtype) for folder in folders.values()]
    assert found[0].dtype == dtype
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    if init != "ones":
        assert not torch.equal(found[0], _by_user_id(folders[1], init, dtype, seed=1))
        assert len(found[0][:, 0].unique()) > 50


def test_edges_are_drawn_by_the_users_ids_too(folders: dict[int, Path]) -> None:
    found = [_by_user_id(folders[p], ("uniform", 0, 1), torch.float32, ("node", "to", "node")) for p in (1, 7)]
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool])
def test_an_array_or_file_is_by_user_id(folders: dict[int, Path], dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.arange(1500).reshape(300, 5).remainder(7).to(dtype)
    assert torch.equal(_by_user_id(folders[7], values, dtype), values)
    if dtype == torch.int64:
        np.save(tmp_path / "values.npy", values.numpy())
        assert torch.equal(_by_user_id(folders[7], str(tmp_path / "values.npy"), dtype), values)


def test_a_callable_makes_rows(folders: dict[int, Path]) -> None:
    asked = []

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        asked.append((shape, dtype))
        return torch.full(shape, 3)

    assert (_by_user_id(folders[2], make, torch.float16) == 3).all()
    assert asked == [((150, 5), torch.float16)] * 2


@pytest.mark.parametrize(
    ("init", "dtype", "complaint"),
    [
        ("random", torch.float32, "init: expected zeros, ones, .*got 'random'"),
        (("uniform", 2, 1), torch.float32, "finite numbers a <= b"),
        (("normal", 0, float("nan")), torch.float32, "finite numbers mean and std"),
        (("uniform", 0, 1), torch.int64, "for floating-point tensors, this one is int64"),
        (torch.zeros(300, 4), torch.float32, r"expected rows of shape \[5\] by user id, got an array \[300, 4\]"),
        (torch.zeros(300, 5), torch.float64, "expected values of torch.float64, got torch.float32"),
        (np.zeros((300, 5)), torch.float32, "expected an array of float32, got float64"),
        (torch.zeros(299, 5), torch.float32, "has 299 rows by user id, and there is the user id 299"),
        ("missing.npy", torch.float32, "missing.npy cannot be read"),
        (lambda shape, dtype: torch.zeros(3), torch.float32, r"the callable returned an array \[3\]"),
    ],
)
def test_what_is_no_init_is_said(folders: dict[int, Path], init: object, dtype: torch.dtype, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        _by_user_id(folders[1], init, dtype)
