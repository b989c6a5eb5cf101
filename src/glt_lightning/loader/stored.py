"""What ``sampling.feature_dtype: stored`` comes to, for the log."""

from __future__ import annotations

from glt_lightning.data.manifest import Manifest


def stored_dtypes(manifest: Manifest) -> str:
    """The dtypes that batches have of each encoded attribute, in one line."""
    dtypes: dict[str, set[str]] = {}
    for key, entry in manifest.encodings.items():
        still = key in manifest.as_stored.encodings and entry.stored != "bfloat16"
        dtypes.setdefault("float32, decoded from int8" if still else entry.stored, set()).add(key)
    if not dtypes.keys() - {"float32, decoded from int8"}:
        why = "no attribute is stored as float16 or bfloat16. Partition with partition.storage"
        return f"sampling.feature_dtype: stored has no effect: {why}."
    what = "; ".join(f"{', '.join(sorted(keys))} as {dtype}" for dtype, keys in sorted(dtypes.items()))
    return f"sampling.feature_dtype: stored: batches have {what}."
