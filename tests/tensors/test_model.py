"""Random programs over tensors, on any number of ranks and parts, leave what one numpy array has after the same steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import from_bfloat16, to_bfloat16
from glt_lightning.tensors import RowSpace, SharedTable, TableSpec
from glt_lightning.tensors.space import row_spaces
from glt_lightning.tensors.values import ValueType
from tests.helpers.homes import open_tables
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.partitions import partitioned, small_hetero
from tests.helpers.ranks import run_ranks

NAMES = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
SHAPES = ((), (3,), (2, 2))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("model")
    for parts in (1, 2, 5):
        partitioned(small_hetero(), folder, parts).close()
    return {parts: folder / f"parts{parts}" for parts in (1, 2, 5)}


class Model:
    """One array, and the same steps on it."""

    def __init__(self, kind: ValueType, shape: tuple[int, ...]) -> None:
        self.kind, self.array = kind, np.zeros(shape, dtype=kind.dtype)

    def add(self, rows: np.ndarray, values: np.ndarray) -> None:
        for row, value in zip(rows, values, strict=True):
            if self.kind.is_bfloat16:
                self.array[row] = to_bfloat16(from_bfloat16(self.array[row]) + from_bfloat16(value))
            else:
                self.array[row] += value


def some_rows(rng: np.random.Generator, allowed: np.ndarray) -> np.ndarray:
    """None, few, or many with duplicates."""
    return rng.choice(allowed, int(rng.choice([0, 1, 7, 300]))) if len(allowed) else allowed


def random_values(rng: np.random.Generator, kind: ValueType, shape: tuple[int, ...]) -> np.ndarray:
    return kind.stored(rng.integers(0, 2 if kind.name == "bool" else 100, shape).astype(np.float32))


def play(
    seed: int,
    rank: int,
    exchange: Callable[[str], list[str]],
    world: int,
    hosts: int,
    network: InProcessNetwork,
    folder: Path,
) -> tuple[np.ndarray, np.ndarray]:
    """A program that all ranks draw alike; each carries out its own writes, of rows that no other rank writes to, and the model
    all of them. Returns (the table, the model)."""
    rng = np.random.default_rng(seed)
    partition = LocalPartition.open(folder)
    tables, closing = open_tables(partition, rank, exchange, world, hosts=hosts, network=network)
    spaces = row_spaces(partition.manifest)
    space: RowSpace = spaces[int(rng.integers(len(spaces)))]
    kind, row_shape = ValueType(str(rng.choice(NAMES))), SHAPES[int(rng.integers(len(SHAPES)))]
    table: SharedTable = tables.create(TableSpec(space, kind.name, row_shape, "t"))
    model = Model(kind, (space.num_rows, *row_shape))
    for _ in range(8):
        owner = rng.integers(0, world, space.num_rows)
        for writer in range(world):
            rows = some_rows(rng, np.flatnonzero(owner == writer))
            values = random_values(rng, kind, (len(rows), *row_shape))
            adds = bool(rng.integers(2)) and kind.name != "bool"
            if adds:
                model.add(rows, values)
            else:
                model.array[rows] = values
            if writer == rank:
                (table.add if adds else table.write)(rows, values)
                np.testing.assert_array_equal(table.read(rows), model.array[rows])  # without a barrier
        tables.barrier()
        rows = some_rows(rng, np.arange(space.num_rows))
        np.testing.assert_array_equal(table.read(rows), model.array[rows])
        assert table.count_nonzero() == np.count_nonzero(model.array)
        tables.barrier()
    assert tables.create(TableSpec(space, kind.name, row_shape, "t")) is table
    found = table.read(np.arange(space.num_rows))
    tables.barrier()
    if rank == 0:
        table.fill(random_values(rng, kind, row_shape))
    tables.barrier()
    assert (table.read(np.arange(space.num_rows)) == table.read(np.array([0]))).all()
    exchange("done with the rows of other hosts")
    closing.close()
    partition.close()
    return found, model.array


@pytest.mark.diagonal
@pytest.mark.parametrize(("world", "hosts"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_programs_equal_one_array(folders: dict[int, Path], world: int, hosts: int, parts: int) -> None:
    for seed in range(6):
        with InProcessNetwork() as network:
            results = run_ranks(
                world,
                lambda rank, exchange, seed=seed, network=network: play(
                    seed, rank, exchange, world, hosts, network, folders[parts]
                ),
            )
        for found, expected in results:
            np.testing.assert_array_equal(found, expected)
