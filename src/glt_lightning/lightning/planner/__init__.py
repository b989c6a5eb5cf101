"""What a run will take, before it runs: the rules, the constants that they need, and a comparison with what a run took."""

from __future__ import annotations

from pathlib import Path


def record_path(partition_dir: Path) -> Path:
    """The file beside a partition folder in which the probes of its plans are kept."""
    return partition_dir.with_name(f"{partition_dir.name}.plans.json")
