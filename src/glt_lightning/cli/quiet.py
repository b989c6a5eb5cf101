"""Lines of dependencies that a user of the command line can do nothing about."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LIGHTNING = "lightning.pytorch.utilities.rank_zero"
# Beginnings of log lines: hardware that nobody asked for, and other packages of Lightning's makers.
_LINES = ("TPU available: False", "💡 Tip: For seamless cloud")
_BANNER_OF_ONE = "All distributed processes registered. Starting with 1 processes"  # five lines about nobody else
_WARNINGS = (
    r".*`tensorboardX` has been removed as a dependency",  # the default logger; docs/configuration.md says which it is
    r"The dirpath has changed from",  # a fit that goes on writes into a folder of its own
    r".*No seed found, seed set to",  # the line below it says the seed
    r".*`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning's use of torch
)


@contextmanager
def without_noise() -> Iterator[None]:
    """Leaves out these lines and warnings in its block, and nothing else."""
    log = logging.getLogger(_LIGHTNING)
    log.addFilter(_is_wanted)
    try:
        with warnings.catch_warnings():
            for message in _WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        log.removeFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    message = str(
        record.msg
    )  # the hidden messages have no arguments, and arguments of other messages may not fit their format
    return not message.startswith(_LINES) and _BANNER_OF_ONE not in message
