"""Checks of the time attribute by which a loader draws neighbours."""

from __future__ import annotations

from glt_lightning.base import OptionError
from glt_lightning.graph import Manifest


def require_time_attr(manifest: Manifest, time_attr: str | None) -> None:
    """Raises `OptionError` unless ``sampling.time_attr`` is None or the attribute that rows of the partition are ordered by."""
    if time_attr is None:
        return
    order = manifest.row_order
    if order is None:
        raise OptionError(
            f"sampling.time_attr: {time_attr}: this partition has no times. Set partition.time_attr: {time_attr} and partition "
            "again."
        )
    if order.time_attr != time_attr:
        raise OptionError(
            f"sampling.time_attr: {time_attr}: the rows of this partition are ordered by {order.time_attr}. Set it to "
            f"{order.time_attr}, or set partition.time_attr to {time_attr} and partition again."
        )


def ignored_times(manifest: Manifest, time_attr: str | None) -> str | None:
    """Returns a line for the log if the partition has times that sampling ignores, else None."""
    order = manifest.row_order
    if time_attr is not None or order is None:
        return None
    return (
        "sampling.time_attr is not set: neighbours of any time are drawn, also of later ones than a seed's. To draw those up to "
        f"its time, set sampling.time_attr: {order.time_attr}."
    )
