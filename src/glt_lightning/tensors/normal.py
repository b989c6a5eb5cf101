"""The inverse of the normal distribution, equal to the last bit on every machine (Wichura, algorithm AS 241)."""

from __future__ import annotations

import math

import numpy as np

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
    """float64: which value a standard normal one is below with probability p, float64 in (0, 1). Additions, multiplications,
    divisions and square roots of float64 are exact to the last bit everywhere; the logarithm of a system's library is not."""
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
    """The natural logarithm of float64 in (0, 1]: of the power of 2, and a series for the rest, to about 1e-16."""
    m, e = np.frexp(x)
    small = m < math.sqrt(0.5)
    m, e = np.where(small, m * 2.0, m), np.where(small, e - 1, e).astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    square, total = s * s, np.zeros_like(s)
    for k in range(25, 0, -2):
        total = total * square + 1.0 / k
    return np.asarray(e * _LN2_HIGH + (2.0 * s * total + e * _LN2_LOW))
