"""The new numbers of nodes: one contiguous range per part, hottest first within a part.

Nodes are sorted in tasks: one distributes a range of user ids over the parts; `in_order` sorts a part; `deal_numbers` distributes
its numbers over ranges of user ids, of which `placed_numbers` makes the array by user id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glt_lightning.partition.tasks.exchange import RunWriter


@dataclass(frozen=True)
class NodeLayout:
    """The numbering of the nodes of one type.

    Attributes:
        bounds: P + 1 numbers; part p owns the new numbers [bounds[p], bounds[p + 1]).
        user_ids: [N], user id by new number.
        new: [N], new number by user id.
    """

    bounds: tuple[int, ...]
    user_ids: np.ndarray
    new: np.ndarray


def node_record(id_dtype: np.dtype) -> np.dtype:
    """The record of a node while it is sorted: 16 bytes, or 20 with 64-bit ids."""
    return np.dtype([("degree", "<i8"), ("id", id_dtype), ("hotness", "<f4")])


def number_record(id_dtype: np.dtype) -> np.dtype:
    """A user id and the new number."""
    return np.dtype([("id", id_dtype), ("number", id_dtype)])


def in_order(records: np.ndarray) -> np.ndarray:
    """Returns the user ids of a part's nodes by (hotness descending, degree descending, user id). records: by user id."""
    ids: np.ndarray = records["id"][np.lexsort((-records["degree"], -records["hotness"]))]
    return ids


def deal_numbers(ids: np.ndarray, first: int, capacity: int, writer: RunWriter) -> None:
    """Distributes consecutive new numbers, from ``first`` on, over ranges of ``capacity`` user ids. ids: of the numbers."""
    records = np.empty(len(ids), number_record(ids.dtype))
    records["id"], records["number"] = ids, np.arange(first, first + len(ids), dtype=ids.dtype)
    writer.deal(records, ids // capacity)


def placed_numbers(records: np.ndarray, begin: int, count: int) -> np.ndarray:
    """Returns the new numbers of the user ids from ``begin`` on. records: of all of them, in any order."""
    new = np.empty(count, records["number"].dtype)
    new[records["id"] - begin] = records["number"]
    return new
