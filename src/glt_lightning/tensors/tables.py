"""The tables of a job: created together on all ranks, in memory that the ranks of a host share."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakMethod, WeakSet

import numpy as np

from glt_lightning.base import DataError, GLTError, OptionError, PeerError, TensorOptions, long_work, size
from glt_lightning.graph import Shapes, SharedArrays
from glt_lightning.tensors.home import LazyHomes, RemoteHomes
from glt_lightning.tensors.init import Init, fill, read_init
from glt_lightning.tensors.scratch import ON_DISK, on_scratch
from glt_lightning.tensors.space import Homes, OwnPart, RowSpace
from glt_lightning.tensors.table import ROWS, WRITERS, SharedTable, WriteEpoch
from glt_lightning.tensors.values import ValueType
from glt_lightning.workers import Ranks

_log = logging.getLogger(__name__)
_MOST_NAME = 200
UserIds = Callable[[RowSpace, int], np.ndarray]  # of the rows of a part


@dataclass(frozen=True)
class TableSpec:
    """The description of a table to create.

    dtype: of torch or numpy, or a name.  row_shape: shape of one row.  name: None for an anonymous table.
    init: first values, as `init.read_init` takes them; arrays are by user id, in their stored form.
    storage: ``memory`` or ``disk``; None: as `TensorOptions` say.  persistent: checkpoints of the job contain the table.
    """

    space: RowSpace
    dtype: Any
    row_shape: tuple[int, ...]
    name: str | None = None
    init: Any = None
    storage: str | None = None
    persistent: bool = False

    def check(self) -> None:
        """Raises `DataError` for an invalid name or shape."""
        name = self.name
        if name is not None and (
            not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MOST_NAME
        ):
            raise DataError(f"tensor: name: expected 1 to {_MOST_NAME} printable characters, got {name!r:.100}.")
        if self.persistent and name is None:
            raise DataError("tensor: persistent: checkpoints find a tensor by its name. Give it a name.")
        if any(type(n) is not int or n < 1 for n in self.row_shape):
            raise DataError(
                f"tensor {name!r}: shape: expected [N, ...] with integers >= 1, got rows of {list(self.row_shape)}."
            )


@dataclass(frozen=True, eq=False)
class _Plan:
    """A checked `TableSpec`. text: the description that ranks compare.  parts: parts of the table on this host."""

    spec: TableSpec
    name: str
    kind: ValueType
    init: Init
    text: str
    parts: list[OwnPart]
    on_disk: bool

    @property
    def rows(self) -> int:
        return sum(each.count for each in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of this host's memory; 0 for a table on disk."""
        return 0 if self.on_disk else self.rows * math.prod(self.spec.row_shape) * self.kind.dtype.itemsize


@dataclass(frozen=True, eq=False)
class _Entry:
    table: SharedTable
    plan: _Plan


class SharedTables:
    """The tables of a job. All ranks construct theirs at the same time. Close it.

    ranks: this rank, and its collective calls.  homes: the host of each part's rows.
    user_ids: returns int64 [n], the user's ids of the rows of a part of this host.  seed: of random first values.
    wait_s: seconds that a write waits for another writer.  remote: shard servers of the other hosts; None: all ranks run on one.
    """

    def __init__(
        self,
        ranks: Ranks,
        homes: Homes,
        user_ids: UserIds,
        *,
        seed: int = 0,
        options: TensorOptions | None = None,
        wait_s: float = 30.0,
        remote: LazyHomes | None = None,
    ) -> None:
        self._remote = remote
        self.ranks, self.homes, self.options = ranks, homes, options or TensorOptions()
        self.user_ids, self.seed, self._wait_s = user_ids, seed, wait_s
        self._family: WeakSet[SharedTables] = WeakSet([self])
        self._open: dict[str, _Entry] = {}
        self._adopted: WeakSet[SharedTable] = WeakSet()
        self._anonymous = 0
        self._ended: list[str] = []  # persistent tables that `close` has closed
        self.when_persistent: Callable[[], object] = lambda: None  # called for each persistent table that is created
        self._epoch = WriteEpoch()

    def apart(self) -> SharedTables:
        """Makes another set of tables of this job, which `close` of this one leaves open. One limit counts the bytes of both."""
        made = SharedTables(
            self.ranks,
            self.homes,
            self.user_ids,
            seed=self.seed,
            options=self.options,
            wait_s=self._wait_s,
            remote=self._remote,
        )
        self._family.add(made)
        made._family = self._family
        return made

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the tables of this host take."""
        return sum(table.nbytes for table in self._in_memory())

    def _all(self) -> list[SharedTable]:
        made = {entry.table for each in self._family for entry in each._open.values()}
        found = made.union(table for each in self._family for table in each._adopted if table.is_open)
        return sorted(found, key=lambda table: table.name)

    def _in_memory(self) -> list[SharedTable]:
        return [table for table in self._all() if not table.on_disk]

    @property
    def named(self) -> dict[str, SharedTable]:
        """The tables that the user has named."""
        return {name: entry.table for name, entry in self._open.items() if entry.plan.spec.name is not None}

    @property
    def persistent(self) -> dict[str, SharedTable]:
        """The tables that checkpoints contain. Raises `DataError` if they were closed at the end of the run."""
        if self._ended:
            raise DataError(
                f"tensor {self._ended[0]!r} is persistent and ended with the run, so this checkpoint would lack it. Save "
                "checkpoints during the run."
            )
        return {name: entry.table for name, entry in self._open.items() if entry.plan.spec.persistent}

    def __getitem__(self, name: str) -> SharedTable:
        return self._open[name].table

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def own_rows(self, space: RowSpace, most: int) -> Iterator[np.ndarray]:
        """Yields this rank's share of the rows of its host, at most ``most`` at a time. Over all ranks each row comes once."""
        ranks = self.homes.ranks_of(self.homes.host)
        turn = ranks.index(self.homes.rank)
        pieces = (
            np.arange(begin, min(begin + most, each.first + each.count))
            for each in self.homes.own_parts(space)
            for begin in range(each.first, each.first + each.count, most)
        )
        return (rows for number, rows in enumerate(pieces) if number % len(ranks) == turn)

    def create(self, describe: TableSpec | Callable[[], TableSpec]) -> SharedTable:
        """Creates a table, or returns the existing one of the same name and description. A collective call.

        describe: the description, or a function that makes it; an error of that function on one rank is raised on all.
        Raises on all ranks `DataError` if they describe different tables, `OptionError` if a host's limit is exceeded; and, if a
        host has too little memory, MemoryError on the rank that allocates and `PeerError` on the others.
        """
        if self.homes.num_hosts > 1 and self._remote is None:
            raise OptionError(
                f"tensor: the ranks run on {self.homes.num_hosts} hosts, which reach each other's rows under the strategies "
                "glt_worker and glt_server_client alone. Choose one of these."
            )
        self._remote_homes()  # a collective call, so it comes before anything that may fail on one rank alone
        plan, id_ = self._agreed(describe)
        there = self._open.get(plan.name)
        if there is not None:
            if there.plan.text != plan.text:
                raise _of_all_ranks(
                    f"tensor {plan.text}: the name is taken by {there.plan.text}. Close that tensor, or use another name."
                )
            return there.table
        self._require_room(plan)
        table = self._share(plan, id_)
        self._open[plan.name] = _Entry(table, plan)
        if plan.spec.persistent:
            self.when_persistent()
        return table

    def adopt(self, table: SharedTable) -> None:
        """Serves a table that has outlived the set it was made by to the ranks of other hosts. A collective call."""
        id_ = self._agree("adopt a tensor", secrets.token_hex(8))[0]
        self.ranks.all_or_none(lambda: table.serve(id_, self._remote_homes(), self._epoch), lambda _: None)
        self._adopted.add(table)

    def _remote_homes(self) -> RemoteHomes | None:
        return None if self._remote is None else self._remote.open()

    def _agreed(self, describe: TableSpec | Callable[[], TableSpec]) -> tuple[_Plan, str]:
        """Compares the descriptions of all ranks. Returns the plan, and the id by which other hosts ask for the table.

        Raises on all ranks if one has failed, or if the descriptions differ. Failures are exchanged rather than raised at once:
        the other ranks would wait in the exchange for a rank that has left it.
        """
        plan, error = None, None
        try:
            plan = self._plan(describe if isinstance(describe, TableSpec) else describe())
        except GLTError as raised:
            error = raised
        # a rank that has closed the table creates it and the others would not: descriptions then differ by ", again"
        text = "" if plan is None else plan.text + (", again" if plan.name in self._open else "")
        everyone = self._agree("create a tensor", [text, None if error is None else str(error), secrets.token_hex(8)])
        _raise_first(error, [failure for _, failure, _ in everyone])
        for rank, (theirs, _, _) in enumerate(everyone):
            if theirs != everyone[0][0]:
                raise _of_all_ranks(
                    f"tensors: the ranks create different tensors: rank 0: {everyone[0][0]}; rank {rank}: {theirs}. All "
                    "ranks create the same ones in the same order."
                )
        assert plan is not None
        self._anonymous += plan.spec.name is None
        return plan, everyone[0][2]

    def _plan(self, spec: TableSpec) -> _Plan:
        spec.check()
        kind = ValueType.of(spec.dtype)
        name = f"anonymous-{self._anonymous}" if spec.name is None else spec.name
        init = read_init(spec.init, name, self.seed, kind, (spec.space.num_rows, *spec.row_shape))
        text = f"{name!r} of {spec.space.label}, {kind.name} rows {list(spec.row_shape)}, {init.text}"
        on_disk = (spec.storage or self.options.storage) == "disk"
        text += (", on disk" if on_disk else "") + (", persistent" if spec.persistent else "")
        return _Plan(spec, name, kind, init, text, self.homes.own_parts(spec.space), on_disk)

    def _share(self, plan: _Plan, id_: str) -> SharedTable:
        """Makes the table over memory that the first rank of each host allocates and fills. A collective call; when it returns,
        the shard servers of all hosts have the table."""
        made: list[SharedArrays] = []

        def make(_sharing: int) -> str:
            made.append(self._make_memory(plan))
            return made[0].path

        def open_() -> SharedTable:
            return self._table(plan, id_, made[0] if made else SharedArrays.open(path, writable=True))

        try:
            path = self.ranks.once_per_host([each.part for each in plan.parts], make)
            return self.ranks.all_or_none(open_, SharedTable.close)
        except BaseException:  # also KeyboardInterrupt: the traceback would keep the memory
            for memory in made:
                memory.close()
            raise

    def zeros(self, shapes: Shapes, meta: Mapping[str, Any], on_disk: bool) -> SharedArrays:
        """Makes arrays of zeros that the ranks of a host can share. on_disk: in a file without a name, not in memory. Raises as
        `on_scratch`."""
        return on_scratch(shapes, meta, self.options) if on_disk else SharedArrays.create(shapes, meta)

    def _make_memory(self, plan: _Plan) -> SharedArrays:
        shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            ROWS: (plan.kind.dtype, (plan.rows, *plan.spec.row_shape))
        }
        if self.options.check_conflicts:
            shapes[WRITERS] = (np.dtype(np.int64), (plan.rows,))
        meta = {"tensor": plan.name, ON_DISK: plan.on_disk}
        memory = self.zeros(shapes, meta, plan.on_disk)
        try:
            with long_work(_log, f"tensor {plan.name!r}: first values", plan.rows) as advance:
                for each in plan.parts if plan.init.text != "zeros" else ():
                    rows = memory.arrays[ROWS][each.begin : each.begin + each.count]
                    fill(rows, plan.init, self.user_ids(plan.spec.space, each.part), advance)
        except BaseException:
            memory.close()
            raise
        memory.finish()  # only now may other processes open it: they would read rows that are not filled yet
        return memory

    def _table(self, plan: _Plan, id_: str, memory: SharedArrays) -> SharedTable:
        forget = WeakMethod(self._forget)  # a table ends with its last user, not at the next collection
        return SharedTable(
            name=plan.name,
            space=plan.spec.space,
            kind=plan.kind,
            row_shape=plan.spec.row_shape,
            homes=self.homes,
            memory=memory,
            wait_s=self._wait_s,
            epoch=self._epoch,
            id=id_,
            remote=self._remote_homes(),
            on_close=lambda name: None if (known := forget()) is None else known(name),
        )

    def barrier(self) -> None:
        """Waits for all ranks. Raises `DataError`, on all of them, for a row that two ranks have written to since the last
        barrier, if the tables check that. A collective call."""
        if self._remote is not None and self.options.check_conflicts:
            self._agree("barrier")  # until then a write of another host may still find one here
        found, self._epoch.conflict = self._epoch.conflict, None
        self._epoch.number += 1
        mine = None if found is None else [found.name, found.row, *found.ranks]
        for text in self._agree("barrier", mine):
            if text is not None:
                name, row, first, second = text
                raise _of_all_ranks(
                    f"tensor {name!r}: rank {first} and rank {second} wrote to row {row} between two barriers, so which value it "
                    "has is undefined. Let one rank write a row, or call barrier() between the writes."
                )

    def close(self) -> None:
        """Closes this rank's view of all tables. Safe to call twice."""
        self._ended += [] if self._ended else self.persistent
        for entry in list(self._open.values()):
            entry.table.close()

    def _forget(self, name: str) -> None:
        self._open.pop(name, None)

    def _agree(self, call: str, value: Any = None) -> list[Any]:
        """Returns the value that each rank has given, in rank order. Raises `DataError`, on all ranks, unless all make the same
        call."""
        everyone = [json.loads(text) for text in self.ranks.exchange(json.dumps([call, value]))]
        for rank, (theirs, _) in enumerate(everyone):
            if theirs != everyone[0][0]:
                raise _of_all_ranks(
                    f"tensors: the ranks disagree: rank 0: {everyone[0][0]}; rank {rank}: {theirs}. All ranks make the same "
                    "calls in the same order."
                )
        return [value for _, value in everyone]

    def _require_room(self, plan: _Plan) -> None:
        """Raises `OptionError`, on all ranks, if the table exceeds the limit of a host. A collective call, before any host
        allocates memory."""
        limit = self.options.limit_bytes

        there, error = self._in_memory(), None
        if sum(table.nbytes for table in there) + plan.nbytes > limit:
            others = ", ".join(f"{table.name!r} {size(table.nbytes)}" for table in there) or "none"
            error = OptionError(
                f"tensor {plan.name!r} takes {size(plan.nbytes)} on this host; with those that are there ({others}) that is more "
                f"than cluster.tensors.limit, {size(limit)}. Raise it, close tensors, or use storage: disk."
            )
        _raise_first(error, self._agree("make room", None if error is None else str(error)))


def _of_all_ranks(text: str) -> DataError:
    error = DataError(text)
    error.on_all_ranks = True
    return error


def _raise_first(mine: GLTError | None, failures: list[str | None]) -> None:
    """Raises, on all ranks, the error of the first rank that has one, with the number of that rank unless all have the same.

    mine: this rank's error.  failures: the errors of all ranks, as text.
    """
    failed = {rank: text for rank, text in enumerate(failures) if text is not None}
    if not failed:
        return
    rank, text = next(iter(failed.items()))
    same = len(failed) == len(failures) and len(set(failures)) == 1
    error: GLTError = PeerError(f"rank {rank}: {text}")
    if mine is not None:
        error = mine if same else type(mine)(f"rank {rank}: {text}")
    error.on_all_ranks = True
    raise error
