"""Progress on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Progress:
    """Shows one line per phase, with its rate, on stderr.

    shown: True, False, or None for "only when stderr is a terminal".
    """

    def __init__(self, shown: bool | None) -> None:
        self._shown = sys.stderr.isatty() if shown is None else shown

    @contextmanager
    def phase(self, title: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
        """Yields a function that is told of ``n`` more units done."""
        if not self._shown:
            yield lambda n: None
            return
        from tqdm import tqdm

        scaled = total >= 1000  # else tqdm would show 40 rows as "40.0 rows"
        with tqdm(
            total=total, desc=title, unit=f" {unit}", unit_scale=scaled, dynamic_ncols=True, file=sys.stderr
        ) as bar:
            yield bar.update
