"""What a picker of neighbours is given, and what it may do with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from glt_lightning.kernels.mix import draw
from glt_lightning.kernels.ranges import spread


@dataclass(frozen=True, eq=False)
class RowView:
    """Rows of one edge type whose neighbours are to be picked: those of F nodes, in any order and in any number.

    The entries of a row are its edges in stored order. Edges that are not there for this batch, as the targets of a link task or
    edges of a later time, are no entries.

    Attributes:
        edge_type: As ``src__rel__dst``.
        hop: Of the batch, from 0.
        uid: int64 [F], the user's ids of the nodes.
        degree: int64 [F], number of entries of each row.
        names: Names of the edge attributes.
        read: Reads an attribute of all entries.
        tree: int32 [F], in a disjoint batch the number of the seed in whose tree each node is; else None.
        since, until: int64 [F], with ``sampling.time_attr`` the bounds of each row in time; None where there is none.

    Example:
        >>> rows = RowView("a__to__b", 0, np.array([7, 3]), np.array([2, 1]), ["w"], lambda name: np.array([5, 6, 1]))
        >>> rows.attrs["w"][rows.begin[0] : rows.begin[1]]  # of the row of node 7
        array([5, 6])
    """

    edge_type: str
    hop: int
    uid: np.ndarray
    degree: np.ndarray
    names: Sequence[str] = ()
    read: Callable[[str], np.ndarray] = field(default=lambda name: np.empty(0), repr=False)
    tree: np.ndarray | None = None
    since: np.ndarray | None = None
    until: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.degree)

    @cached_property
    def begin(self) -> np.ndarray:
        """int64 [F + 1]: where the entries of each row begin in an attribute."""
        return np.append(0, np.cumsum(self.degree))

    @cached_property
    def attrs(self) -> Mapping[str, np.ndarray]:
        """Attributes of all entries, row after row: [sum of degrees, ...]. An attribute is read when it is first asked for."""
        return _Attributes(self.edge_type, self.names, self.read)

    def rows(self, which: np.ndarray) -> RowView:
        """Some of the rows, in the order of ``which``, int64 [n]."""
        entries = spread(self.begin[which], self.degree[which])
        of_rows = (None if a is None else a[which] for a in (self.tree, self.since, self.until))
        attrs, own = self.attrs, (self.uid[which], self.degree[which])
        return RowView(self.edge_type, self.hop, *own, self.names, lambda name: attrs[name][entries], *of_rows)


class Picker(Protocol):
    """Picks the neighbours of nodes, in place of the fan-out's uniform or weighted draw.

    A class of yours with this method is named in ``sampling.picker``, by ``class_path`` and ``init_args``, and runs in every
    process that has rows of the graph. An attribute ``version``, any number or text, is compared between them.

    Example:
        >>> class First:  # the first neighbours of each row
        ...     def pick(self, rows, fanout, stream):
        ...         counts = np.minimum(rows.degree, fanout)
        ...         return counts, np.concatenate([np.arange(n) for n in counts])
        >>> rows = RowView("a__to__b", 0, np.array([7, 3]), np.array([5, 1]))
        >>> First().pick(rows, 2, np.array([11, 12], np.uint64))
        (array([2, 1]), array([0, 1, 0]))
    """

    def pick(self, rows: RowView, fanout: int, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(number of picks of each row, int [F]; their positions among the entries of the row, int, row after row).

        fanout: that of the hop and edge type, 1 or more, or -1.  stream: uint64 [F], random bits of each row, of the batch's key,
        the hop, the edge type and the node (and the tree): what is drawn at random is drawn from them, as `pick_uniform` does.

        It must be a pure function, and what it picks of a row must not depend on the other rows.
        """


def pick_uniform(degree: np.ndarray, counts: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Positions drawn without replacement: of each row as many as ``counts`` says, and all where it has no more.

    The draws are those of the built-in sampler. A picker returns its ``np.minimum(counts, degree)`` and these.

    Args:
        degree: int [F], entries of each row, less than 2^31.
        counts: int [F], 0 or more.
        stream: uint64 [F], as `Picker.pick` gets it.

    Returns:
        int64 [sum of the picks of each row], ascending in each row.

    Example:
        >>> pick_uniform(np.array([3, 9]), np.array([4, 2]), np.array([1, 2], np.uint64))
        array([0, 1, 2, 4, 6])
    """
    taken = np.minimum(counts, degree).astype(np.int64)
    begin = np.cumsum(taken) - taken
    found = spread(np.zeros_like(taken), taken)  # right where the whole row is taken
    some = np.flatnonzero(taken < degree)
    some = some[np.argsort(-taken[some], kind="stable")]
    for i in range(int(taken[some].max(initial=0))):
        some = some[: np.searchsorted(-taken[some], -i, side="left")]
        j = degree[some] - taken[some] + i
        q = draw(stream[some], i, j + 1)
        before = found[begin[some][:, None] + np.arange(i)]
        found[begin[some] + i] = np.where((before == q[:, None]).any(axis=1), j, q)
    rows = np.repeat(np.arange(len(taken)), taken)
    return found[np.lexsort((found, rows))]


class _Attributes(Mapping[str, np.ndarray]):
    def __init__(self, edge_type: str, names: Sequence[str], read: Callable[[str], np.ndarray]) -> None:
        self._edge_type, self._names, self._read = edge_type, names, read
        self._found: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            known = ", ".join(self._names) or "none"
            raise KeyError(f"edges of type {self._edge_type} have no attribute {name!r}; they have {known}")
        if name not in self._found:
            self._found[name] = self._read(name)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
