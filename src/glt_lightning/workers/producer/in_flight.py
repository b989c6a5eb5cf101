"""The number of batches that may be in flight at once, by their size."""

from __future__ import annotations

import logging
from dataclasses import replace

from glt_lightning.base import SamplingOptions
from glt_lightning.graph import available_memory

_log = logging.getLogger(__name__)

LEAST = (
    2  # one that is made while another is in training; also what a run begins with, before its batches' size is known
)
_SHARE = 8  # 1/8 of the available memory: the page cache of the graph, the model and other loaders need the rest


def memory_for_batches(processes: int = 1) -> int:
    """Bytes of batches in flight that ``auto`` allows each of ``processes`` processes of this host."""
    return max(1, available_memory() // _SHARE // processes)


def with_channel_bytes(sampling: SamplingOptions, ranks_on_host: int) -> SamplingOptions:
    """The options with a number in place of ``channel_size: auto``. It may differ between ranks: no batch depends on it."""
    if sampling.channel_size != "auto":
        return sampling
    return replace(sampling, channel_size=memory_for_batches(ranks_on_host))


class InFlight:
    """The limit of batches in flight of a loader: requested or made, and not yet delivered.

    most: limit regardless of their size.  why: the options that give it, for the log.  budget: bytes of all loaders of the
    rank together; None: no limit.
    """

    def __init__(self, most: int, why: str, budget: int | None) -> None:
        self._most, self._why, self._budget = most, why, budget
        self._logged = False

    @classmethod
    def of(cls, sampling: SamplingOptions, most: int, why: str) -> InFlight:
        return cls(most, why, with_channel_bytes(sampling, 1).channel_bytes)

    def allowed(self, largest: int, others: int = 0) -> int:
        """Number of batches that may be in flight now.

        largest: bytes of the loader's largest batch so far, 0 before the first.  others: bytes in flight for the other
        loaders of the rank.
        """
        if self._budget is None:
            return self._most
        if not largest:
            return min(LEAST, self._most)
        return min(self._most, max(LEAST, (self._budget - others) // largest))

    def log_once(self, largest: int) -> None:
        """Logs the limit once the size of a batch is known."""
        if not self._logged:
            self._logged = True
            limit = "no limit" if self._budget is None else f"{self._budget / 1e6:,.0f} MB"
            _log.info(
                "batches in flight of this rank: up to %d of %d (%s), %.1f MB each; sampling.channel_size: %s.",
                self.allowed(largest),
                self._most,
                self._why,
                largest / 1e6,
                limit,
            )
