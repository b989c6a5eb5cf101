"""What is known of the labels before anything is loaded: enough to choose a task and to size a model's output."""

from __future__ import annotations

from typing import Any

import numpy as np

from glt_lightning.graph import Manifest, attr_key, node_path
from glt_lightning.partition import GraphSource

# ``kind``: int, bool or float.  ``width``: D of labels [N, D], None of labels [N].  ``num_classes``: None for a regression.
# ``class_names``: names of the classes, or of the D labels, None where they have none. Plain values, because a module keeps
# them among its hyper-parameters and checkpoints are read with ``weights_only``.
LabelFacts = dict[str, Any]

_KINDS = {"i": "int", "u": "int", "b": "bool"}


def labels_of_manifest(manifest: Manifest) -> LabelFacts | None:
    """None where the target has no labels."""
    if manifest.target_type is None:
        return None
    t = manifest.schema.node_index(manifest.target_type)
    entry = manifest.arrays.get(node_path(0, t, "y"))
    if entry is None:
        return None
    encoded = attr_key("nodes", t, "y") in manifest.encodings
    names = None if manifest.class_names is None else list(manifest.class_names)
    return _facts("float" if encoded else _kind(entry.dtype), entry.shape[1:], manifest.num_classes, names)


def labels_of_source(source: GraphSource) -> LabelFacts | None:
    """The same of a data set that is not partitioned yet, without loading one that tells by ``label_form``."""
    form = getattr(source, "label_form", None)
    if form is None:
        if source.target_type is None or (y := source.node_attrs(source.target_type).get("y")) is None:
            return None
        form = _kind(y.dtype), tuple(y.shape[1:])
    kind, shape = form
    return _facts(kind, shape, source.num_classes, class_names_of(source))


def class_names_of(source: GraphSource) -> list[str] | None:
    """Names of the classes, of a source that has any."""
    names = getattr(source, "class_names", None)
    return None if names is None else [str(name) for name in names]


def _kind(dtype: Any) -> str:
    return _KINDS.get(np.dtype(dtype).kind, "float")


def _facts(kind: str, shape: tuple[int, ...], num_classes: int | None, names: list[str] | None) -> LabelFacts:
    width = shape[0] if shape else None
    return {"kind": kind, "width": width, "num_classes": num_classes, "class_names": names}
