"""The norm of a gradient whose rows lie on several ranks: the same bits however the rows are spread and ordered.

Clipping scales all rows by it, so a sum in any order would make weights depend on the partition. Squares are therefore cut
into two pieces on fixed grids, coarse enough that the pieces add up without rounding (the pre-rounding of Rump, Ogita and Oishi,
*Accurate floating-point summation*, 2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from glt_lightning.tensors.exchange import Exchange

_LEAST = 2.0**-1074


def norms(squares: Sequence[np.ndarray], exchange: Exchange) -> list[float]:
    """Of the gradient of each table, from this rank's `ops.embedding.row_squares`; inf or nan where one is. A collective call."""
    mine = np.array([[each.max(initial=0.0), len(each)] for each in squares], np.float64)
    everyone = exchange.gather(mine.reshape(-1)).reshape(exchange.size, -1, 2)
    tops, numbers = everyone[:, :, 0].max(axis=0), everyone[:, :, 1].sum(axis=0)
    pieces = [_pieces(each, top, int(n)) for each, top, n in zip(squares, tops, numbers, strict=True)]
    sums = exchange.gather(np.array(pieces, np.float64).reshape(-1)).reshape(exchange.size, -1, 2).sum(axis=0)
    return [
        math.sqrt(coarse + fine) if math.isfinite(top) else float(top)
        for top, (coarse, fine) in zip(tops.tolist(), sums.tolist(), strict=True)
    ]


def _pieces(squares: np.ndarray, top: float, number: int) -> tuple[float, float]:
    """Two sums of which each is exact. top, number: the largest square, and how many there are, over all ranks."""
    if not math.isfinite(top) or top == 0.0:
        return 0.0, 0.0
    exponent, bits = math.frexp(top)[1], number.bit_length()
    found, rest = [], squares
    for _ in range(2):
        exponent += bits - 52
        grid = max(math.ldexp(1.0, exponent), _LEAST)
        piece = np.rint(rest / grid) * grid
        rest = rest - piece
        found.append(float(piece.sum()))
    return found[0], found[1]
