"""Where a batch's rows of one table are found: in mapped parts, in caches, in the answers of owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from glt_lightning.errors import PeerError
from glt_lightning.ops.dynamic_cache import DynamicCache
from glt_lightning.ops.gather import Shards
from glt_lightning.ops.ranked_set import RankedSet
from glt_lightning.ops.route import Route, Router
from glt_lightning.sampler.source import Gathered


class KeptRows(Protocol):
    """Rows of others that are kept here: `CachedRows`, `KeptEdges`."""

    @property
    def rows(self) -> Mapping[str, np.ndarray]: ...

    def __len__(self) -> int: ...

    def find(self, ids: np.ndarray) -> np.ndarray:
        """int32 [n]: which row each is, or -1."""


@dataclass(frozen=True)
class Answer:
    """Rows that are placed from ``place`` on. index: of the table in what ``gathered`` gives.  ids: of rows that an owner
    was asked for; None: of a cache."""

    place: int
    count: int
    gathered: Gathered
    index: int = 0
    ids: np.ndarray | None = None


@dataclass
class Table:
    """The nodes of one type or the edges of one relation: where a batch's rows of it will be found.

    stored: names in the partition.  end: first id behind those of the graph; kept rows are placed from there on, and
    answers of owners behind those.  on_device: rows that nobody is asked for.
    """

    kind: str
    type: int
    stored: tuple[str, ...]
    local: dict[str, Shards]
    router: Router
    end: int
    kept: KeptRows | None = None
    learning: DynamicCache | None = None
    on_device: RankedSet | None = None
    next_place: int = 0
    places: list[np.ndarray] = field(default_factory=list)  # int64, one array per step of the batch
    answers: list[Answer] = field(default_factory=list)  # in the order of their places
    ranks: list[np.ndarray] = field(default_factory=list)  # int32, on the device, one array per step
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])  # rows that are local, kept, remote

    def __post_init__(self) -> None:
        self.row_bytes = sum(shards.row_bytes for shards in self.local.values())
        self._owners = np.arange(self.router.num_owners, dtype=np.int64)
        self._found: list[list[np.ndarray]] = []  # memory for rows of `learning`, for each step of the batch
        self._first_answer = self.end
        if self.kept is not None:
            self._first_answer += len(self.kept)
            rows = self.kept.rows
            self.local = {n: a.extended([(self.end, rows[n])], self._first_answer) for n, a in self.local.items()}

    def clear(self) -> None:
        self.next_place = self._first_answer
        self.places.clear()
        self.answers.clear()
        self.ranks.clear()
        self.counts = [0, 0, 0]

    def route(self, ids: np.ndarray) -> Route:
        """Finds who has new rows of the batch and gives the rows their places, but for those on the device."""
        if self.on_device is not None:
            self.ranks.append(self.on_device.find(ids))
            ids = ids[self.ranks[-1] < 0]
        cached, begin = None, self.end
        if self.kept is not None:
            cached = self.kept.find(ids)
        elif self.learning is not None:
            cached, begin = self._look_up(ids, self.learning), self.next_place
            self.next_place += int(cached.max(initial=-1)) + 1
        first = self.next_place + len(ids) * (self._owners - 1)  # owner 0 needs no place
        route = self.router(ids, first if cached is None else np.append(first, begin), cached)
        self.next_place += len(ids) * (self.router.num_owners - 1)
        self.places.append(route.place)
        asked = route.begin[self.router.num_owners] - route.begin[1]
        for i, n in enumerate((route.begin[1], len(ids) - route.begin[1] - asked, asked)):
            self.counts[i] += n
        return route

    @property
    def all_places(self) -> np.ndarray:
        """int64 [n]: where the batch's rows are in `shards`, when all were routed."""
        if len(self.places) != 1:
            self.places = [np.concatenate(self.places) if self.places else np.empty(0, dtype=np.int64)]
        return self.places[0]

    def shards(self, name: str) -> Shards:
        """The attribute, from the parts that are mapped and from the answers of owners."""
        local = self.local[name]
        remote = [(answer.place, self._checked(answer, name)) for answer in self.answers]
        return local.extended(remote, self.next_place)

    def learn(self) -> None:
        """Offers the rows of owners to the cache that learns."""
        if self.learning is not None:
            for answer in self.answers:
                if answer.ids is not None:
                    rows = [np.ascontiguousarray(self._checked(answer, name)) for name in self.stored]
                    self.learning.insert(answer.ids.astype(np.int64), rows)

    def _look_up(self, ids: np.ndarray, learning: DynamicCache) -> np.ndarray:
        """int32 [n]: which rows the cache that learns has, numbered; those are placed next. Only others' are looked up."""
        step = len(self.places)
        if step == len(self._found):
            self._found.append([])
        foreign = np.flatnonzero(self.router(ids, self._owners).owner)
        if not self._found[step] or len(self._found[step][0]) < len(foreign):
            shards = [self.local[name] for name in self.stored]
            self._found[step] = [np.empty((len(foreign), *a.stored_row_shape), a.stored_dtype) for a in shards]
        numbers, rows = learning.find(ids[foreign], self._found[step])
        if len(rows[0]):
            found = [dict(zip(self.stored, rows, strict=True))]
            self.answers.append(Answer(self.next_place, len(rows[0]), lambda: found))
        cached = np.full(len(ids), -1, dtype=np.int32)
        cached[foreign] = numbers
        return cached

    def _checked(self, answer: Answer, name: str) -> np.ndarray:
        given, rows = answer.gathered()[answer.index], answer.count
        array = given.get(name) if isinstance(given, dict) else None
        local = self.local[name]
        if array is None or array.dtype != local.stored_dtype or array.shape != (rows, *local.stored_row_shape):
            got = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise PeerError(f"an owner answered {got} for {rows} rows of {self.kind} attribute {name!r}.")
        return array
