"""First values of a table: a function of (seed, name, user id, column), and so the same for any number of parts and hosts.

Random values come from keyed draws and from additions, multiplications, divisions and square roots of float64 alone, all of
which are exact to the last bit on every machine; a library's logarithm is not.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import open_regular
from glt_lightning.kernels import keyed
from glt_lightning.sampling import role_key
from glt_lightning.tensors.values import ValueType

_BATCH = 1 << 16  # rows that are made at once
_KNOWN = "zeros, ones, ('uniform', a, b), ('normal', mean, std), 'xavier_uniform', an array by user id, a .npy path, a callable"


@dataclass(frozen=True)
class Init:
    """Checked first values. text: description that ranks compare.  values: user ids [n] -> stored values [n, *row_shape]."""

    text: str
    values: Callable[[np.ndarray], np.ndarray]


def read_init(given: Any, name: str, seed: int, kind: ValueType, shape: tuple[int, ...]) -> Init:
    """Checks ``init`` as users give it; None is zeros. shape: [N, ...] of the whole table.

    Raises `DataError` for anything else, and for random values of a type that is not a floating-point one.
    """
    where, row_shape = f"tensor {name!r}: init:", shape[1:]
    if given is None or (isinstance(given, str) and given in ("zeros", "ones")):
        value = 1 if given == "ones" else 0
        return Init(given or "zeros", lambda ids: kind.stored(np.full((len(ids), *row_shape), value, np.float32)))
    if isinstance(given, (str, Path)) and str(given).endswith(".npy"):
        return _of_array(_open(where, Path(given)), str(given), where, kind, row_shape)
    if hasattr(given, "__array__"):
        array = np.asarray(given)
        return _of_array(array, f"array {_digest(array)}", where, kind, row_shape)
    if given == "xavier_uniform":
        if len(shape) != 2:
            raise DataError(f"{where} 'xavier_uniform' is for tensors [N, D], got {list(shape)}.")
        bound = math.sqrt(6.0 / (shape[0] + shape[1]))
        given = ("uniform", -bound, bound)
    if isinstance(given, (tuple, list)) and len(given) == 3 and given[0] in ("uniform", "normal"):
        return _random(where, given, name, seed, kind, row_shape)
    if callable(given):
        called = getattr(given, "__qualname__", type(given).__qualname__)
        return Init(f"callable {called}", lambda ids: _called(where, given, kind, (len(ids), *row_shape)))
    raise DataError(f"{where} expected {_KNOWN}; got {given!r:.100}.")


def fill(
    out: np.ndarray, init: Init, user_ids: np.ndarray, advance: Callable[[int], object] = lambda rows: None
) -> None:
    """Writes the first values of rows [n, ...] by their user ids, a piece at a time. advance: called with the rows of each."""
    for begin in range(0, len(out), _BATCH):
        ids = user_ids[begin : begin + _BATCH]
        out[begin : begin + _BATCH] = init.values(ids)
        advance(len(ids))


def bits_of(seed: int, name: str, user_ids: np.ndarray, columns: int) -> np.ndarray:
    """Returns uint64 [n, columns]: the random bits of each value."""
    rows = keyed(role_key(seed, f"tensor {name}"), np.asarray(user_ids, dtype=np.int64))
    return keyed(rows[:, None], np.arange(columns))


def uniform(bits: np.ndarray, low: float, high: float) -> np.ndarray:
    """Returns float32 in [low, high), from the upper 24 bits: as many as a float32 holds exactly."""
    return np.asarray(low + (high - low) * ((bits >> np.uint64(40)) * 2.0**-24), dtype=np.float32)


def normal(bits: np.ndarray, mean: float, std: float) -> np.ndarray:
    """Returns normal float32, from the upper 52 bits."""
    p = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(mean + std * standard_normal(p), dtype=np.float32)


def _random(where: str, given: Any, name: str, seed: int, kind: ValueType, row_shape: tuple[int, ...]) -> Init:
    what, a, b = given
    if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in (a, b)) or (what == "uniform" and a > b):
        expected = "finite numbers a <= b" if what == "uniform" else "finite numbers mean and std"
        raise DataError(f"{where} expected ({what!r}, a, b) with {expected}; got {given!r:.100}.")
    if not kind.is_float:
        raise DataError(
            f"{where} {what} values are for floating-point tensors, this one is {kind.name}. Use zeros or an array."
        )
    columns, draw = math.prod(row_shape), uniform if what == "uniform" else normal

    def values(ids: np.ndarray) -> np.ndarray:
        return kind.stored(draw(bits_of(seed, name, ids, columns), float(a), float(b)).reshape(-1, *row_shape))

    return Init(f"{what} {float(a)!r} {float(b)!r}", values)


def _open(where: str, path: Path) -> np.ndarray:
    try:
        open_regular(path).close()  # a FIFO would be waited for
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    except (OSError, ValueError) as error:
        raise DataError(f"{where} {path} cannot be read ({error}).") from None


def _of_array(array: np.ndarray, text: str, where: str, kind: ValueType, row_shape: tuple[int, ...]) -> Init:
    if array.shape[1:] != row_shape or array.ndim == 0:
        raise DataError(
            f"{where} expected rows of shape {list(row_shape)} by user id, got an array {list(array.shape)}."
        )
    if array.dtype != kind.dtype:
        raise DataError(f"{where} expected an array of {kind.name}, got {array.dtype}. Convert it.")

    def values(ids: np.ndarray) -> np.ndarray:
        if len(ids) and int(ids.max()) >= len(array):
            raise DataError(
                f"{where} the array has {len(array)} rows by user id, and there is the user id {ids.max()}."
            )
        return kind.stored(array[ids])

    return Init(text, values)


def _called(where: str, function: Callable[..., Any], kind: ValueType, shape: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(function(shape, kind.dtype))
    if values.shape != shape:
        raise DataError(f"{where} the callable returned an array {list(values.shape)}, {list(shape)} was asked for.")
    return kind.stored(values)


def _digest(array: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).reshape(-1), digest_size=16).hexdigest()


# The inverse of the normal distribution, equal to the last bit on every machine (Wichura, algorithm AS 241).


# (upper, lower) coefficients of ratios of polynomials, highest power first
_CENTRAL = (
    (2509.0809287301227, 5226.495278852854),
    (33430.57558358813, 28729.085735721943),
    (67265.7709270087, 39307.89580009271),
    (45921.95393154987, 21213.794301586597),
    (13731.69376550946, 5394.196021424751),
    (1971.5909503065513, 687.1870074920579),
    (133.14166789178438, 42.31333070160091),
    (3.3871328727963665, 1.0),
)

_MIDDLE = (
    (0.0007745450142783414, 1.0507500716444169e-09),
    (0.022723844989269184, 0.0005475938084995345),
    (0.2417807251774506, 0.015198666563616457),
    (1.2704582524523684, 0.14810397642748008),
    (3.6478483247632045, 0.6897673349851),
    (5.769497221460691, 1.6763848301838038),
    (4.630337846156546, 2.053191626637759),
    (1.4234371107496835, 1.0),
)

_FAR = (
    (2.0103343992922881e-07, 2.0442631033899397e-15),
    (2.7115555687434876e-05, 1.421511758316446e-07),
    (0.0012426609473880784, 1.8463183175100548e-05),
    (0.026532189526576124, 0.0007868691311456133),
    (0.29656057182850487, 0.014875361290850615),
    (1.7848265399172913, 0.1369298809227358),
    (5.463784911164114, 0.599832206555888),
    (6.657904643501103, 1.0),
)

_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # their sum is ln 2 to 1e-26


def standard_normal(p: np.ndarray) -> np.ndarray:
    """Returns float64: the quantile of the standard normal distribution at p, float64 in (0, 1).

    Only additions, multiplications, divisions and square roots are used, which all machines round alike, to the last bit; the
    logarithms of system libraries differ.
    """
    q = p - 0.5
    near = 0.180625 - q * q
    found: np.ndarray = q * _ratio(_CENTRAL, near)
    tail = near < 0
    side, below = q[tail], p[tail]
    r = np.sqrt(-_log(np.where(side < 0, below, 1.0 - below)))
    far = np.where(r <= 5.0, _ratio(_MIDDLE, r - 1.6), _ratio(_FAR, r - 5.0))
    found[tail] = np.where(side < 0, -far, far)
    return found


def _ratio(coefficients: tuple[tuple[float, float], ...], x: np.ndarray) -> np.ndarray:
    upper, lower = np.zeros_like(x), np.zeros_like(x)
    for a, b in coefficients:
        upper, lower = upper * x + a, lower * x + b
    return np.asarray(upper / lower)


def _log(x: np.ndarray) -> np.ndarray:
    """Natural logarithm of float64 in (0, 1], to about 1e-16: that of the power of 2, plus a series for the mantissa."""
    m, e = np.frexp(x)
    small = m < math.sqrt(0.5)
    m, e = np.where(small, m * 2.0, m), np.where(small, e - 1, e).astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    square, total = s * s, np.zeros_like(s)
    for k in range(25, 0, -2):
        total = total * square + 1.0 / k
    return np.asarray(e * _LN2_HIGH + (2.0 * s * total + e * _LN2_LOW))
