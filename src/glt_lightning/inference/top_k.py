"""The k best destinations of sources by the scores of a decoder, without those that are known: by blocks, or by faiss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, OptionError
from glt_lightning.inference.neighbours import approximate_index
from glt_lightning.tensors import DistGraph

_SCORES = 1 << 24  # at once
_ROWS = 1 << 16  # destinations at once
_HELD_BYTES = 1 << 28  # embeddings that are kept in memory
_LOW = torch.iinfo(torch.int64).min
_IDS = (1 << 32) - 1  # a destination's id takes the lower half of a key


class KnownPairs:
    """Pairs of source and destination that are not recommended, in eight bytes each. pairs: int64 [2, n] each, ids; repeated ones
    count once."""

    def __init__(self, pairs: Iterable[np.ndarray]) -> None:
        keys = np.concatenate([np.zeros(0, np.int64), *((src << 32) | dst for src, dst in pairs)])
        if (keys < 0).any():
            raise DataError(f"known pairs: ids of sources are at most {_IDS >> 1}.")
        keys.sort()
        self._keys = keys[np.diff(keys, prepend=-1) != 0]

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, sources: np.ndarray) -> np.ndarray:
        """Returns int64 [2, n]: the pairs of some sources, by position in these, ascending by position and destination."""
        begin, last = (
            np.searchsorted(self._keys, sources << 32),
            np.searchsorted(self._keys, (sources << 32) | _IDS, "right"),
        )
        counts = last - begin
        at = np.repeat(np.arange(len(sources)), counts)
        first = np.repeat(begin - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        return np.stack([at, self._keys[first + np.arange(len(at))] & _IDS])


@dataclass(frozen=True)
class Candidates:
    """The nodes of a type among which others are ranked, by position: those that are not deleted.

    count: number of nodes.  ids: int64 [n], the user's ids of those that are left, ascending; None: all are."""

    count: int
    ids: np.ndarray | None = None

    @classmethod
    def of(cls, graph: DistGraph, node_type: str) -> Candidates:
        count, deleted = graph.num_nodes(node_type), graph.deleted(node_type).numpy()
        return cls(count, np.delete(np.arange(count), deleted) if len(deleted) else None)

    def __len__(self) -> int:
        return self.count if self.ids is None else len(self.ids)

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Returns the ids at positions."""
        return positions if self.ids is None else self.ids[positions]

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the positions of ids, -1 for those of deleted nodes."""
        if self.ids is None:
            return ids
        at = np.searchsorted(self.ids, ids)
        return np.where(np.append(self.ids, -1)[at] == ids, at, -1)

    def pairs(self, pairs: np.ndarray) -> np.ndarray:
        """Returns int64 [2, n]: pairs with the positions of their second ends, without those whose second end is deleted."""
        found = np.stack([pairs[0], self.positions(pairs[1])])
        return found[:, found[1] >= 0]


class HeldRows:
    """Embeddings by ids that follow each other, kept in memory as long as there is room; others are read again.

    read: returns the embeddings of ids int64 [n]."""

    def __init__(self, read: Callable[[np.ndarray], Tensor]) -> None:
        self._read, self._held = read, dict[int, Tensor]()  # by the first id

    def __call__(self, ids: np.ndarray) -> Tensor:
        first = int(ids[0]) if len(ids) else 0
        held = self._held.get(first)
        if held is not None and len(held) == len(ids):
            return held
        rows = self._read(ids)
        if sum(each.nbytes for each in self._held.values()) + rows.nbytes <= _HELD_BYTES:
            self._held[first] = rows
        return rows


@dataclass(frozen=True)
class Best:
    """The best destinations of some sources. ids: int64 [S, k], best first, -1 behind the last candidate.  scores: float32
    [S, k]."""

    ids: Tensor
    scores: Tensor


@dataclass(frozen=True)
class TopK:
    """Finds the k best destinations of sources. Equal scores are in the order of the destinations' ids.

    destination: returns the embeddings of ids int64 [n]; they are kept as long as there is room.  count: number of destinations.
    score: returns the scores of all pairs of some sources and destinations.
    """

    destination: Callable[[np.ndarray], Tensor]
    count: int
    score: Callable[[Tensor, Tensor], Tensor]
    k: int

    def __post_init__(self) -> None:
        if type(self.k) is not int or not 1 <= self.k <= self.count:
            raise OptionError(f"k: expected 1 to {self.count}, the number of destinations; got {self.k!r}.")
        if self.count > _IDS:
            raise OptionError(f"k: at most {_IDS} destinations are ranked, and there are {self.count}.")
        object.__setattr__(self, "destination", HeldRows(self.destination))

    def approximate(self, transformed: Callable[[Tensor], Tensor]) -> ApproximateTopK:
        """Builds the same by faiss. transformed: returns the rows whose inner products with those of destinations are the
        scores."""
        return ApproximateTopK(self, transformed)

    def of(self, rows: Tensor, known: np.ndarray) -> Best:
        """Finds them for sources with embeddings [S, D]. known: int64 [2, n], positions of sources and ids that are left out."""
        best = torch.full((len(rows), self.k), _LOW, device=rows.device)
        for begin, some in self._blocks(len(rows)):
            scores = self.score(rows, self.destination(some)).float()
            if scores.isnan().any():
                raise DataError("recommend: a score is not a number. Has the model diverged?")
            here = (known[1] >= begin) & (known[1] < begin + len(some))
            at = torch.from_numpy(np.stack([known[0][here], known[1][here] - begin])).to(rows.device)
            top = _best_keys(scores, at, begin, min(self.k, len(some)))
            best = torch.cat([best, top], dim=1).topk(self.k, dim=1).values
        return _of_keys(best)

    def _blocks(self, sources: int) -> Iterator[tuple[int, np.ndarray]]:
        at_once = max(1, min(_ROWS, _SCORES // max(1, sources)))
        for begin in range(0, self.count, at_once):
            yield begin, np.arange(begin, min(begin + at_once, self.count))


def _best_keys(scores: Tensor, left_out: Tensor, begin: int, k: int) -> Tensor:
    """Returns int64 [S, k]: the greatest of `_keys` of the scores [S, n], the lowest number for those that are left out.

    Keys of all scores take three times as long as the k greatest scores, so only rows are searched by keys in which others are
    equal to the k-th. left_out: int64 [2, m], positions."""
    scores[left_out[0], left_out[1]] = float("-inf")
    values, at = scores.topk(k, dim=1)
    least = values[:, -1:]
    unclear = ((least == float("-inf")) | ((scores >= least).sum(1, keepdim=True) > k)).squeeze(1)
    found = _keys(values, at + begin)
    if unclear.any():
        ids = torch.arange(begin, begin + scores.size(1), device=scores.device)
        keys = _keys(scores[unclear], ids.expand(int(unclear.sum()), -1))
        row = (unclear.cumsum(0) - 1)[left_out[0]]
        mine = unclear[left_out[0]]
        keys[row[mine], left_out[1][mine]] = _LOW
        found[unclear] = keys.topk(k, dim=1).values
    return found


def _keys(scores: Tensor, ids: Tensor) -> Tensor:
    """Returns int64 [S, n]: numbers in the order of the scores, equal ones in the reverse order of ids, all different."""
    bits = scores.contiguous().add(0.0).view(torch.int32).long()  # adding 0 makes -0 a 0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return ordered * (1 << 32) + (_IDS - ids)


def _of_keys(keys: Tensor) -> Best:
    none = keys == _LOW
    ordered, ids = keys >> 32, _IDS - (keys & _IDS)
    bits = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(torch.int32)
    scores = bits.view(torch.float32).masked_fill(none, float("-inf"))
    return Best(ids.masked_fill(none, -1), scores)


class ApproximateTopK:
    """`TopK` by faiss, of inner products: a few of the best are missed. No list is shorter for that: sources for which the search
    finds too few that are not known are ranked exactly.

    exact: the same, exactly.  transformed: returns the rows whose inner products with those of destinations are the scores.
    """

    def __init__(self, exact: TopK, transformed: Callable[[Tensor], Tensor]) -> None:
        self._exact, self._transformed = exact, transformed
        blocks = [exact.destination(some).float().cpu().numpy() for _, some in exact._blocks(1)]
        self._search = approximate_index(np.concatenate(blocks), 2 * exact.k)

    def of(self, rows: Tensor, known: np.ndarray) -> Best:
        """As `TopK.of`."""
        k, most = self._exact.k, int(np.bincount(known[0], minlength=1).max(initial=0))
        wanted = min(self._exact.count, k + most)
        found, values = self._search(self._transformed(rows).float().cpu().numpy(), wanted)
        ids, scores = torch.full((len(rows), k), -1), torch.full((len(rows), k), float("-inf"))
        left_out = np.split(known[1], np.searchsorted(known[0], np.arange(1, len(rows))))
        again = []
        for n, drop in enumerate(left_out):
            kept = (found[n] >= 0) & ~np.isin(found[n], drop)
            chosen = np.flatnonzero(kept)[:k]
            if len(chosen) < min(k, self._exact.count - len(drop)):
                again.append(n)
                continue
            ids[n, : len(chosen)] = torch.from_numpy(found[n, chosen])
            scores[n, : len(chosen)] = torch.from_numpy(values[n, chosen])
        if again:
            of = known[:, np.isin(known[0], again)]
            exact = self._exact.of(rows[again], np.stack([np.searchsorted(again, of[0]), of[1]]))
            ids[again], scores[again] = exact.ids.cpu(), exact.scores.cpu()
        return Best(ids, scores)
