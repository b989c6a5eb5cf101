"""Local ids by first occurrence."""

from __future__ import annotations

import numpy as np

from glt_lightning.kernels.native import GROW, call, check, library


def relabel(
    ids: np.ndarray, known: np.ndarray | None = None, *, wide: bool | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers ids in the order of their first occurrence, after those of ``known``.

    ids: int64 [n], >= 0.  known: int64 [k], ids that have the local ids 0..k-1 already (the first of equal ones counts).
    Returns (unique int64 [k + new], lids int32 [n]) with ``unique[lids] == ids``.
    Raises `DataError` for a negative id.
    """
    known = np.empty(0, dtype=np.int64) if known is None else known
    if wide is None:
        wide = bool(len(ids) and ids.max() >= 2**32 - 2) or bool(len(known) and known.max() >= 2**32 - 2)
    cap = len(known) + len(ids)
    unique = np.empty(cap, dtype=np.int64)
    unique[: len(known)] = known
    slots = 64
    while slots * 3 // 4 <= cap:
        slots *= 2
    table = np.empty(slots * (2 if wide else 1), dtype=np.int64)
    count = np.array([len(known)], dtype=np.int64)
    lids = np.empty(len(ids), dtype=np.int32)
    status, detail = call(library().glt_relabel, ids, len(ids), table, slots, wide, 1, unique, count, cap, lids)
    assert status != GROW, detail
    check(status, detail, "relabel")
    return unique[: count[0]].copy(), lids
