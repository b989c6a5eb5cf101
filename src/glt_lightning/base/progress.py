"""Progress on the terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 10.0  # between the log lines of a long work


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


@contextmanager
def long_work(
    log: logging.Logger,
    title: str,
    total: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    shown: bool | None = None,
) -> Iterator[Callable[[int], object]]:
    """Yields a function that is told of ``n`` more rows done. Work that takes longer than `EVERY_S` is told about: by a bar on a
    terminal, elsewhere by a line of the log each time that this has passed, and one at its end.

    total: rows.  shown: whether there is a bar; None: where stderr is a terminal.
    """
    if sys.stderr.isatty() if shown is None else shown:
        from tqdm import tqdm

        options = {"unit": " rows", "unit_scale": True, "dynamic_ncols": True, "leave": False, "file": sys.stderr}
        with tqdm(total=total, desc=title, delay=EVERY_S / 5, **options) as bar:
            yield bar.update
        return
    done, begun = 0, clock()
    last = begun

    def tell(now: float) -> None:
        speed = done / (now - begun) if now > begun else 0.0
        log.info("%s: %.0f %% of %s rows, %s rows/s", title, 100 * done / total, f"{total:,}", f"{speed:,.0f}")

    def advance(n: int) -> None:
        nonlocal done, last
        done += n
        if done < total and (now := clock()) - last >= EVERY_S:
            last = now
            tell(now)

    yield advance
    if last > begun and done >= total:
        tell(clock())
