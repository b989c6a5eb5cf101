"""The times of seeds, and the bounds in time that they set to what is drawn for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.kernels import Trees

SEED_TIME = "seed_time"  # the times of a batch's seeds, in what it has of its seeds
_LEAST = np.iinfo(np.int64).min  # also what numpy makes of NaT


def as_times(where: str, given: Any) -> np.ndarray | None:
    """int64 [S], of integers or of numpy's ``datetime64``, which become microseconds since 1970; None: not given.

    Raises `OptionError` for other numbers and for missing times. where: what it begins with.
    """
    if given is None:
        return None
    times = np.asarray(given)
    if times.dtype.kind == "M":
        times = times.astype("datetime64[us]").astype(np.int64)
    if times.ndim != 1 or (len(times) and times.dtype.kind not in "iu"):
        raise OptionError(
            f"{where}: expected integers [S], such as microseconds since 1970, got {times.dtype} {list(times.shape)}."
        )
    whole = times.astype(np.int64)
    bad = (whole == _LEAST) | ((whole < 0) & (times > 0))
    if bad.any():
        at = int(bad.argmax())
        raise OptionError(f"{where}: the seed at position {at} has no time that fits int64 ({times[at]}). Give it one.")
    return whole


def require_times(where: str, times: np.ndarray | None, count: int, sampling: SamplingOptions, remedy: str) -> None:
    """Raises `OptionError` unless there are times where, and only where, ``sampling.time_attr`` is set, one for each seed.

    where: the loader and the option of the times.  remedy: what to do where they are missing.
    """
    if times is None and sampling.time_attr is not None:
        raise OptionError(f"{where}: missing, and sampling.time_attr is {sampling.time_attr}. {remedy}")
    if times is not None and sampling.time_attr is None:
        raise OptionError(f"{where}: has no effect without sampling.time_attr. Set it, or remove the times.")
    if times is not None and len(times) != count:
        raise OptionError(f"{where}: expected one for each of the {count} seeds, got {len(times)}.")


def bounds_of(times: np.ndarray, sampling: SamplingOptions) -> Trees:
    """From when until when edges are drawn for seeds of these times, int64 [S]."""
    until = times if sampling.time_boundary == "<=" else times - 1
    if sampling.time_window is None:
        return Trees(until=until)
    window = min(sampling.time_window, np.iinfo(np.int64).max)
    return Trees(until=until, since=np.where(times < _LEAST + window, _LEAST, times - window))
