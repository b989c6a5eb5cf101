"""Log lines about what options of sampling do with what a partition stores."""

from __future__ import annotations

import logging

from glt_lightning.base import SamplingOptions
from glt_lightning.graph import Manifest
from glt_lightning.sampling import SamplerConfig, ignored_times, ignored_weights

_log = logging.getLogger(__name__)


def ignored(manifest: Manifest, sampling: SamplingOptions, config: SamplerConfig) -> list[str]:
    """Lines for the log where a loader ignores times or weights that edges have and its batches could depend on: those of seeds
    alone do not, those of all neighbours not on weights, and those of a picker, which reads them itself, on neither."""
    fanouts = {k for hop in config.fanouts for k in hop if k}
    if not fanouts or config.picker is not None:
        return []
    found = [ignored_times(manifest, sampling.time_attr)]
    if fanouts != {-1} and not config.last:
        found.append(ignored_weights(manifest, sampling.weight_attr))
    return [line for line in found if line is not None]


def log_stored_dtypes(manifest: Manifest) -> None:
    """Logs the dtype of each encoded attribute in batches; warns if the option has no effect."""
    dtypes: dict[str, set[str]] = {}
    for key, entry in manifest.encodings.items():
        still = key in manifest.as_stored.encodings and entry.stored != "bfloat16"
        dtypes.setdefault("float32, decoded from int8" if still else entry.stored, set()).add(key)
    if not dtypes.keys() - {"float32, decoded from int8"}:
        _log.warning(
            "sampling.feature_dtype: stored has no effect: no attribute is stored as float16 or bfloat16. Remove it, or "
            "partition with partition.storage."
        )
        return
    attributes = "; ".join(f"{', '.join(sorted(keys))} as {dtype}" for dtype, keys in sorted(dtypes.items()))
    _log.info("sampling.feature_dtype: stored: batches have %s.", attributes)
