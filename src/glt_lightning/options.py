"""Every option of the package: frozen dataclasses, the same in YAML, on the command line and in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glt_lightning.errors import OptionError

Normalize = Literal["none", "rows", "standardize"]
SeedPlacement = Literal["global", "owner"]


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}: expected an integer >= {least}, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """How a graph is cut into parts.

    Attributes:
        num_parts: Number of parts, >= 1.
        algorithm: Which algorithm assigns nodes to parts.
        seed: Seed of the assignment.
        dir: Folder of the partition. ``None`` derives one below ``root`` from the data set and these options, so that
            other options make another folder.
        memory_bytes: Working memory of the partitioner beyond a few arrays of one entry per node.
    """

    num_parts: int = 1
    algorithm: Literal["random"] = "random"
    seed: int = 0
    dir: str | None = None
    memory_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        _at_least("partition.num_parts", self.num_parts, 1)
        _at_least("partition.seed", self.seed, 0)
        _at_least("partition.memory_bytes", self.memory_bytes, 1 << 20)
        if self.algorithm not in ("random",):
            raise OptionError(f"partition.algorithm: expected 'random', got {self.algorithm!r}.")


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How batches are made.

    Attributes:
        num_workers: Sampler processes per rank; 0 samples inside the training process.
        concurrency: Batches that each sampler process has in hand; it makes as many at once as there are cores for.
        num_threads: Threads that share the work of one batch.
        replace: Draw neighbours with replacement.
        with_edge: Give each batch its ``e_id`` (and ``edge_attr`` where the graph has it).
        seed: Seed of all draws and shuffles. ``None``: Lightning's global seed, else one drawn on rank 0.
        seed_placement: ``global`` shuffles all seeds and deals them out; ``owner`` gives a rank the seeds of its parts.
        channel_size: Most bytes of batches in flight per rank, as an integer or like ``"2GB"``; ``None`` sets no limit
            beyond ``num_workers * concurrency`` batches.
        pin_memory: Page-lock the memory of batches. ``None``: only when training on a GPU.
        max_restarts: How often sampler processes of a rank may be started again after they died or raised.
        timeout_s: Longest wait for one batch, in seconds.
    """

    num_workers: int = 0
    concurrency: int = 4
    num_threads: int = 1
    replace: bool = False
    with_edge: bool = False
    seed: int | None = None
    seed_placement: SeedPlacement = "global"
    channel_size: int | str | None = None
    pin_memory: bool | None = None
    max_restarts: int = 3
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        _at_least("sampling.num_workers", self.num_workers, 0)
        _at_least("sampling.concurrency", self.concurrency, 1)
        _at_least("sampling.num_threads", self.num_threads, 1)
        _at_least("sampling.max_restarts", self.max_restarts, 0)
        if self.seed is not None:
            _at_least("sampling.seed", self.seed, 0)
        if self.seed_placement not in ("global", "owner"):
            raise OptionError(f"sampling.seed_placement: expected 'global' or 'owner', got {self.seed_placement!r}.")
        if not self.timeout_s > 0:
            raise OptionError(f"sampling.timeout_s: expected seconds > 0, got {self.timeout_s!r}.")
        if self.channel_size is not None:
            parse_bytes("sampling.channel_size", self.channel_size)

    @property
    def channel_bytes(self) -> int | None:
        """``channel_size`` in bytes."""
        return None if self.channel_size is None else parse_bytes("sampling.channel_size", self.channel_size)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where the graph is served and sampled. Empty on one host.

    Attributes:
        peer_timeout_s: How long a rank may go on after another rank of the job died, in seconds.
    """

    peer_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.peer_timeout_s > 0:
            raise OptionError(f"cluster.peer_timeout_s: expected seconds > 0, got {self.peer_timeout_s!r}.")


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(name: str, value: int | str) -> int:
    """``"1.5GiB"`` -> 1610612736; integers pass. Raises `OptionError` for anything else or for less than one byte."""
    text = str(value).strip().upper()
    number = text.rstrip("KMGTIB ")
    try:
        size = int(float(number) * _UNITS[text[len(number) :].strip()])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < 1:
        raise OptionError(f"{name}: expected bytes such as 500000000, '500MB' or '2GiB', got {value!r}.")
    return size


def parse_fanouts(num_neighbors: list[int], name: str = "num_neighbors") -> tuple[int, ...]:
    """Checks one list of fan-outs, first hop first: each -1 (all neighbours) or >= 1."""
    ok = isinstance(num_neighbors, (list, tuple)) and len(num_neighbors) > 0
    if ok:
        ok = all(isinstance(k, int) and not isinstance(k, bool) and (k == -1 or k >= 1) for k in num_neighbors)
    if not ok:
        hint = (
            " Drop the hop instead of asking for 0."
            if isinstance(num_neighbors, (list, tuple)) and 0 in num_neighbors
            else ""
        )
        raise OptionError(f"{name}: expected one integer per hop, each -1 (all) or >= 1; got {num_neighbors!r}.{hint}")
    return tuple(num_neighbors)
