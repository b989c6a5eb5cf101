"""What the package has to say reaches the terminal, as Lightning's own lines do."""

from __future__ import annotations

import logging


def show_log() -> None:
    """Prints the lines of the package on stderr, unless the user has set up logging. Safe to call twice."""
    log = logging.getLogger("glt_lightning")
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
