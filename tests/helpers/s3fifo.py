"""S3-FIFO in plain Python: what `glt_lightning.kernels.dynamic_cache` does, id by id, without its rows; and LRU."""

from __future__ import annotations

from collections import OrderedDict, deque

_MASK = (1 << 64) - 1


def hash_of(id_: int) -> int:
    """The finaliser of SplitMix64."""
    z = ((id_ ^ (id_ >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class S3Fifo:
    """One shard."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small_share = max(1, capacity // 10)
        self.small: deque[int] = deque()
        self.main: deque[int] = deque()
        self.ghosts: deque[int | None] = deque(maxlen=max(1, capacity - self.small_share))
        self.uses: dict[int, int] = {}
        self.evictions = 0

    def find(self, id_: int) -> bool:
        if id_ not in self.uses:
            return False
        self.uses[id_] = min(3, self.uses[id_] + 1)
        return True

    def insert(self, id_: int) -> None:
        if id_ in self.uses:
            return
        queue = self.small
        if id_ in self.ghosts:
            self.ghosts[self.ghosts.index(id_)] = None  # its place is not given to another
            queue = self.main
        if len(self.uses) == self.capacity:
            self._drop()
        self.uses[id_] = 0
        queue.append(id_)

    def _drop(self) -> None:
        self.evictions += 1
        if len(self.small) >= self.small_share:
            self._drop_small()
        else:
            self._drop_main()

    def _drop_small(self) -> None:
        while True:
            id_ = self.small.popleft()
            if self.uses[id_] <= 1:
                del self.uses[id_]
                self.ghosts.append(id_)
                return
            self.uses[id_] = 0
            self.main.append(id_)
            if len(self.main) > self.capacity - self.small_share:
                return self._drop_main()

    def _drop_main(self) -> None:
        while True:
            id_ = self.main.popleft()
            if self.uses[id_] == 0:
                del self.uses[id_]
                return
            self.uses[id_] -= 1
            self.main.append(id_)


class ShardedS3Fifo:
    """Shards keyed by the hash of the id, as the native cache has them."""

    def __init__(self, capacity: int, shards: int) -> None:
        self.shards = [S3Fifo(capacity // shards + (i < capacity % shards)) for i in range(shards)]

    def _shard(self, id_: int) -> S3Fifo:
        return self.shards[(hash_of(id_) >> 48) * len(self.shards) >> 16]

    def find(self, id_: int) -> bool:
        return self._shard(id_).find(id_)

    def insert(self, id_: int) -> None:
        self._shard(id_).insert(id_)

    @property
    def evictions(self) -> int:
        return sum(shard.evictions for shard in self.shards)

    def __len__(self) -> int:
        return sum(len(shard.uses) for shard in self.shards)

    def __contains__(self, id_: int) -> bool:
        return id_ in self._shard(id_).uses


def lru_hits(ids: list[int], capacity: int) -> int:
    """How many of these requests an LRU cache answers that keeps every row it missed."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for id_ in ids:
        if id_ in kept:
            hits += 1
            kept.move_to_end(id_)
            continue
        if len(kept) == capacity:
            kept.popitem(last=False)
        kept[id_] = None
    return hits
