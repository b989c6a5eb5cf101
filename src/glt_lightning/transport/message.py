"""What travels: a small header and one body of raw arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

EMPTY = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True)
class Message:
    """header: what JSON can say.  body: uint8 [n], arrays at the offsets that the header names."""

    header: Mapping[str, Any]
    body: np.ndarray = EMPTY
