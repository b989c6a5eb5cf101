"""`ops.embedding` in plain loops over numpy's float32. Slow, short and normative: the native code gives exactly these bits."""

from __future__ import annotations

import numpy as np

from glt_lightning.kernels import Adjust, RowSums
from glt_lightning.kernels.embedding import AS_IS

_F = np.float32


def merge_rows(rows: np.ndarray, values: np.ndarray, counts: np.ndarray | None = None) -> RowSums:
    sums: dict[int, np.ndarray] = {}
    number: dict[int, int] = {}
    for i, row in enumerate(rows.tolist()):
        sums[row] = sums[row] + values[i] if row in sums else values[i].copy()
        number[row] = number.get(row, 0) + (1 if counts is None else int(counts[i]))
    order = sorted(sums)
    made = np.stack([sums[row] for row in order]) if order else np.empty((0, values.shape[1]), _F)
    return RowSums(np.array(order, np.int64), made, np.array([number[row] for row in order], np.int64))


def adjusted(gradients: RowSums, adjust: Adjust) -> list[tuple[int, np.ndarray]]:
    """(row, gradient as the step takes it)."""
    found = []
    for row, g in zip(gradients.rows.tolist(), divided(gradients, adjust), strict=True):
        g = g * _F(adjust.factor)
        if adjust.clip_value < np.inf:
            g = np.clip(g, _F(-adjust.clip_value), _F(adjust.clip_value))
        if adjust.clip_row_norm < np.inf and (norm := np.sqrt(squares(g))) > adjust.clip_row_norm:
            g = g * _F(adjust.clip_row_norm / norm)
        found.append((row, g))
    return found


def divided(gradients: RowSums, adjust: Adjust) -> np.ndarray:
    """float32 [n, D], in the order of the rows."""
    under = gradients.counts[:, None].astype(_F) if adjust.by_count else _F(adjust.divisor)
    return gradients.sums / under


def row_squares(gradients: RowSums, adjust: Adjust = AS_IS) -> np.ndarray:
    found = []
    for g in divided(gradients, adjust).astype(np.float64):
        s = [np.float64(0)] * 8
        for k, value in enumerate(g):
            s[k % 8] += value * value
        found.append(((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])))
    return np.array(found, np.float64)


def squares(g: np.ndarray) -> np.float64:
    """The sum of squares in float64, in the order of the columns."""
    total = np.float64(0)
    for value in g.astype(np.float64):
        total += value * value
    return total


def power(base: float, n: int) -> float:
    result = 1.0
    while n:
        result, base, n = (result * base if n & 1 else result), base * base, n >> 1
    return result


def sgd_rows(weight: np.ndarray, gradients: RowSums, *, lr: float, adjust: Adjust = AS_IS) -> None:
    for row, g in adjusted(gradients, adjust):
        weight[row] -= _F(lr) * g


def adagrad_rows(
    weight: np.ndarray, sums: np.ndarray, gradients: RowSums, *, lr: float, eps: float, adjust: Adjust = AS_IS
) -> None:
    rowwise = sums.shape[1] == 1 and weight.shape[1] > 1
    for row, g in adjusted(gradients, adjust):
        sums[row] += _F(squares(g) / len(g)) if rowwise else g * g
        weight[row] -= _F(lr) * (g / (np.sqrt(sums[row]) + _F(eps)))


def adam_rows(
    weight: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    steps: np.ndarray | int,
    gradients: RowSums,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    adjust: Adjust = AS_IS,
) -> None:
    (m, v), (b1, b2) = moments, betas
    for row, g in adjusted(gradients, adjust):
        m[row] += (g - m[row]) * _F(1 - b1)
        v[row] += (g * g - v[row]) * _F(1 - b2)
        if isinstance(steps, int):
            size = _F(lr * np.sqrt(1 - power(b2, steps)) / (1 - power(b1, steps)))
            weight[row] -= size * (m[row] / (np.sqrt(v[row]) + _F(eps)))
            continue
        steps[row] += 1
        by1, by2 = (_F(1 - power(b, int(steps[row]))) for b in betas)
        weight[row] -= _F(lr) * ((m[row] / by1) / (np.sqrt(v[row] / by2) + _F(eps)))
