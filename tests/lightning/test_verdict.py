"""What an epoch was bound by."""

from __future__ import annotations

import pytest

from glt_lightning.lightning.callbacks.monitor import verdict
from glt_lightning.sampling import Counters


@pytest.mark.parametrize(
    ("wait_share", "core_wait_share", "spent", "found"),
    [
        (0.0, 0.0, {}, "compute"),
        (0.0999, 0.0, {"remote_s": 100.0}, "compute"),
        (0.1, 0.0, {"remote_s": 100.0}, "network"),
        (0.0, 0.0999, {}, "compute"),
        (0.0, 0.1, {}, "cores"),
        (0.05, 0.5, {"remote_s": 100.0}, "cores"),
        (0.4, 0.5, {"remote_s": 100.0}, "network"),  # without a core for half of the other 60 %
        (0.5, 0.0, {"sample_s": 3.0, "remote_s": 2.9, "disk_s": 2.9, "gather_s": 2.9}, "sampling"),
        (0.5, 0.0, {"sample_s": 1.0, "remote_s": 1.2, "disk_s": 0.0, "gather_s": 1.1}, "network"),
        (0.5, 0.0, {"sample_s": 1.0, "remote_s": 1.0, "disk_s": 1.2, "gather_s": 1.1}, "disk"),
        (1.0, 0.0, {"sample_s": 1.0, "remote_s": 1.0, "disk_s": 1.0, "gather_s": 1.1}, "copy"),
        (1.0, 1.0, {}, "sampling"),
    ],
)
def test_verdict(wait_share: float, core_wait_share: float, spent: dict[str, float], found: str) -> None:
    assert verdict(wait_share, core_wait_share, Counters(local_rows=5, **spent)) == found  # type: ignore[arg-type]
