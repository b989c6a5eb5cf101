"""The order of an epoch's seeds and how ranks share them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from glt_lightning.base import OptionError
from glt_lightning.kernels import Trees, keyed
from glt_lightning.sampling.request import BatchRequest, batch_key, shuffle_key


def permutation(n: int, key: int) -> np.ndarray:
    """Returns int64 [n]: 0..n-1 in the order of keyed hashes; the same on every machine and in every release."""
    return np.argsort(keyed(key, np.arange(n)), kind="stable")


def draws_by_weight(weights: np.ndarray, key: int) -> np.ndarray:
    """Draws n of n positions with replacement, in proportion to their weights, int64 [n]; keyed as `permutation`.

    weights: float64 [n], finite, none negative, one above zero.
    """
    n = len(weights)
    ends = np.cumsum(weights)
    fractions = (keyed(key, np.arange(n)) >> np.uint64(11)) * 2.0**-53
    drawn = np.searchsorted(ends, fractions * ends[-1], side="right")
    # A product that is rounded up to the sum is found behind the last position.
    return np.minimum(drawn, np.flatnonzero(weights)[-1])


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """The assignment of seeds to a rank's batches, epoch by epoch. A pure function of its fields and the epoch, so that a run
    resumes in mid-epoch exactly.

    seeds: int64 [S] gids, the same on all ranks.
    shuffle: a new order in each epoch; without it the order is the user's.
    exact: for evaluation: every seed exactly once, a rank may end a step earlier, and all epochs draw as epoch 0 does.
        Else all ranks have the same number of steps.
    owner: int64 [S], the rank that owns each seed, for ``owner`` placement; None: seeds are dealt out to all ranks.
    extras: arrays [S, ...], by name; a batch has the rows of its seeds.
    bounds: the period in which edges are drawn for each seed, in the form of trees without seeds; None: no bounds.
    weights: float64 [S]: each epoch draws S seeds with replacement, in proportion to their weights, in place of a new
        order; without ``shuffle`` every epoch draws the same. For training alone. None: every seed once.

    batch_dependency: number of consecutive batches that draw their neighbours with the key of the first of them.
    steps: yield this many batches, and start over with new draws when the seeds are used up; for ranks whose seeds
        differ (each then plans as if alone). None: as many as the seeds make.

    The last batch over all ranks is divided evenly. If it has fewer seeds than ranks it joins the step before, unless
    ``exact``. An ``exact`` rank that gets no seed at all has one batch without seeds: a loop that evaluates must run its
    hooks on every rank, since metrics are summed over all of them.

    Raises:
        OptionError: For an invalid batch size, rank or weights, and for fewer seeds than ranks in training.

    Example:
        >>> plan = EpochPlan(seeds=np.arange(10), batch_size=2, seed=0, loader="train", rank=1, world_size=2)
        >>> len(plan)
        3
        >>> [request.seeds.tolist() for request in plan.requests(epoch=0)]
        [[2, 3], [6, 7], [9]]
    """

    seeds: np.ndarray
    batch_size: int
    seed: int
    loader: str
    rank: int = 0
    world_size: int = 1
    shuffle: bool = False
    exact: bool = False
    owner: np.ndarray | None = None
    steps: int | None = None
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)
    weights: np.ndarray | None = None
    bounds: Trees | None = None
    batch_dependency: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise OptionError(f"batch_size: expected an integer >= 1, got {self.batch_size!r}.")
        if not 0 <= self.rank < self.world_size:
            raise OptionError(f"rank: expected 0 <= rank < world_size, got rank {self.rank} of {self.world_size}.")
        if len(self.seeds) < self.world_size and not self.exact:
            advice = "Use fewer devices or more seeds." if len(self.seeds) else "Its split is empty."
            raise OptionError(
                f"loader {self.loader!r}: each rank needs a seed; there are {len(self.seeds)} for world size {self.world_size}. "
                + advice
            )
        if self.weights is not None:
            self._check_weights(self.weights)

    def _check_weights(self, weights: np.ndarray) -> None:
        where = f"loader {self.loader!r}: seed_weights:"
        if self.exact:
            raise OptionError(f"{where} an evaluation visits every seed exactly once; remove the weights.")
        if weights.shape != self.seeds.shape:
            raise OptionError(
                f"{where} expected one for each of the {len(self.seeds)} seeds, got {list(weights.shape)}."
            )
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(bad):
            raise OptionError(
                f"{where} expected numbers >= 0, got {weights[bad[0]]} for the seed at position {bad[0]}."
            )
        if not np.isfinite(weights.sum()) or not weights.any():
            raise OptionError(f"{where} expected a finite sum above zero, got {weights.sum()}.")

    def __len__(self) -> int:
        """Returns the number of batches of this rank in an epoch."""
        return len(self._shares[1]) if self.steps is None else self.steps

    def epoch_of_draws(self, epoch: int) -> int:
        """Returns the epoch that keys the draws: 0 for evaluation, which draws the same neighbours in every epoch."""
        return 0 if self.exact else epoch

    def requests(self, epoch: int, start: int = 0) -> Iterator[BatchRequest]:
        """Yields the `BatchRequest` of each step from ``start`` on."""
        for number, key, positions in self._batches(epoch, start):
            request = self.request(number, key, positions)
            if self.batch_dependency > 1:
                first = self._begin(number - number % self.batch_dependency)
                request = replace(request, neighbor_key=self._key(epoch, first))
            yield request

    def request(self, number: int, key: int, positions: np.ndarray) -> BatchRequest:
        """Makes the request for the batch of the seeds at ``positions``."""
        extras = {name: values[positions] for name, values in self.extras.items()}
        seeds, trees = np.ascontiguousarray(self.seeds[positions]), self._trees(positions)
        return BatchRequest(number, key, seeds, positions, extras=extras, trees=trees)

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[int, int, np.ndarray]]:
        epoch = self.epoch_of_draws(epoch)
        order = self._order(epoch)
        first, sizes = self._shares
        for number in range(start, len(self)):
            step = number % len(sizes)
            positions = np.ascontiguousarray(order[first[step] : first[step] + sizes[step]])
            yield number, self._key(epoch, self._begin(number)), positions

    def _begin(self, number: int) -> int:
        """Returns the position of a batch's first seed in the order of an epoch. When the seeds are used up, positions go on, so
        that repeated seeds get new draws."""
        first, _ = self._shares
        again, step = divmod(number, len(first))
        return first[step] + again * len(self.seeds)

    def _key(self, epoch: int, begin: int) -> int:
        return batch_key(self.seed, self.loader, self.epoch_of_draws(epoch), begin)

    def _trees(self, positions: np.ndarray) -> Trees | None:
        """Returns the bounds of the seeds at these positions."""
        if self.bounds is None:
            return None
        until, since = (None if b is None else b[positions] for b in (self.bounds.until, self.bounds.since))
        return Trees(until=until, since=since)

    def _order(self, epoch: int) -> np.ndarray:
        n = len(self.seeds)
        key = shuffle_key(self.seed, self.loader, epoch)
        if self.weights is not None:
            order = draws_by_weight(self.weights, key if self.shuffle else shuffle_key(self.seed, self.loader, 0))
        else:
            order = permutation(n, key) if self.shuffle else np.arange(n, dtype=np.int64)
        return order if self.owner is None else order[_by_owner(self.owner[order], self.world_size)]

    @property
    def _shares(self) -> tuple[list[int], list[int]]:
        share = _owned_shares if self.owner is not None else _dealt_shares
        return share(len(self.seeds), self.batch_size, self.rank, self.world_size, self.exact)


@lru_cache(maxsize=64)
def _dealt_shares(n: int, batch: int, rank: int, world: int, exact: bool) -> tuple[list[int], list[int]]:
    """Returns the position of the first seed of each batch of a rank, and the batches' sizes, if steps are dealt out: each step
    has ``batch`` seeds of rank 0, then of rank 1, and so on."""
    full, rest = divmod(n, batch * world)
    if 0 < rest < world and not exact:
        full, rest = full - 1, rest + batch * world
    first = [step * batch * world + rank * batch for step in range(full)]
    sizes = [batch] * full
    each, extra = divmod(rest, world)
    last = each + (rank < extra)
    if last:
        first.append(full * batch * world + rank * each + min(rank, extra))
        sizes.append(last)
    return (first, sizes) if sizes or not n else ([n], [0])


@lru_cache(maxsize=64)
def _owned_shares(n: int, batch: int, rank: int, world: int, exact: bool) -> tuple[list[int], list[int]]:
    """Returns the position of the first seed of each batch of a rank, and the batches' sizes, if the order holds rank after
    rank, each with an even share of the seeds."""
    each, extra = divmod(n, world)
    begin, count = rank * each + min(rank, extra), each + (rank < extra)
    if exact:
        sizes = [min(batch, count - i) for i in range(0, count, batch)] or ([0] if n else [])
    else:
        steps = max(1, -(-each // batch))  # the ranks with one seed more put it into their last batch
        sizes = [batch] * (steps - 1) + [count - batch * (steps - 1)]
    return [begin + i * batch for i in range(len(sizes))], sizes


def _by_owner(owner: np.ndarray, world: int) -> np.ndarray:
    """Sorts positions by rank, int64 [S], and gives every rank an even share.

    A rank keeps its own seeds in their order up to its share; the surplus goes, in order, to the ranks that lack seeds,
    lowest rank first.
    """
    each, extra = divmod(len(owner), world)
    share = [each + (rank < extra) for rank in range(world)]
    own = [np.flatnonzero(owner == rank) for rank in range(world)]
    surplus = np.sort(np.concatenate([mine[n:] for mine, n in zip(own, share, strict=True)]))
    parts, taken = [], 0
    for mine, n in zip(own, share, strict=True):
        lack = max(0, n - len(mine))
        parts += [mine[:n], surplus[taken : taken + lack]]
        taken += lack
    return np.concatenate(parts)
