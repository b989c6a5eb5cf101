"""Options that an earlier release had, or had elsewhere. Files of that release name all options with their defaults: a default is
passed over, another value is refused with a line that says what to write instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from glt_lightning.base.errors import OptionError

# Name, as errors have it -> (its default, what to write instead).
_OPTIONS: Mapping[str, tuple[Any, str]] = {
    "cache.save": (False, "The cache is filled when a run starts. Remove the option."),
    "cache.num_neighbors": (None, "Batches are no longer counted for a cache. Remove the option."),
    "cache.batch_size": (None, "Batches are no longer counted for a cache. Remove the option."),
    "cache.weight_attr": (None, "Batches are no longer counted for a cache. Remove the option."),
    "cache.device_topology": (None, "Write sampling.topology_bytes."),
    "cluster.prefetch_size": (None, "Write cluster.prefetch."),
    "cluster.buffer_size": (None, "Write data.sampling.channel_size."),
    "cluster.num_workers": (2, "Write data.sampling.num_workers, which graph servers read."),
    "cluster.concurrency": (4, "Write data.sampling.concurrency, which graph servers read."),
    "cluster.worker_devices": ([], "Write data.sampling.worker_devices, which graph servers read."),
    "cluster.channel_size": ("auto", "Write data.sampling.channel_size, which graph servers read."),
    "cluster.retry": (
        {"first_s": 0.05, "most_s": 2.0},
        "Remove the option; cluster.deadlines says how long peers are tried.",
    ),
    "cluster.limits.streams_per_host": (768, "It is three quarters of cluster.limits.streams. Write that."),
    "cluster.limits.sessions": (1024, "There are as many as cluster.limits.streams. Write that."),
    "cluster.limits.unread_size": (
        "256MB",
        "Remove the option, or write cluster.limits.unread_total_size for all clients.",
    ),
    "partition.imbalance": (
        0.05,
        "Parts exceed their even share by 5 %. Remove the option, or write an assigner of your own.",
    ),
    "partition.passes": (3, "Three passes are made. Remove the option."),
    "layerwise.most_edges": (20_000_000, "Remove the option; layerwise.batch_size makes batches smaller."),
    "layerwise.wait_s": (600.0, "A rank may show no progress for 600 s. Remove the option."),
}
# Option of a data module -> (its default, its name now).
_MOVED: Mapping[str, tuple[Any, str]] = {
    "input_type": (None, "seeds.input_type"),
    "splits": (None, "seeds.splits"),
    "input_time": (None, "seeds.input_time"),
    "seed_weights": (None, "seeds.weights"),
    "edge_splits": (None, "links.edge_splits"),
    "neg_sampling": (None, "links.neg_sampling"),
    "exclude_target_edges": (None, "links.exclude_target_edges"),
    "tree": ("end", "links.tree"),
    "with_target_attrs": (False, "links.with_target_attrs"),
    "val_edges_at_test": (False, "links.val_edges_at_test"),
    "edge_format": ("tensor", "batches.edge_format"),
    "transform": (None, "batches.transform"),
    "with_row": (False, "batches.with_row"),
    "disjoint": (False, "batches.disjoint"),
    "subgraph_type": ("directional", "batches.subgraph_type"),
    "induced_limit": (None, "batches.induced_limit"),
    "reverse_edge_types": (None, "batches.reverse_edge_types"),
    "ptr": (False, "batches.ptr"),
    "eval_num_neighbors": (None, "evaluation.num_neighbors"),
    "eval_batch_size": (None, "evaluation.batch_size"),
    "eval": ("sampled", "evaluation.mode"),
    "layerwise": (
        {
            "batch_size": 4096,
            "dtype": "float32",
            "memory": "auto",
            "scratch": None,
            "self_check": 16,
            "most_edges": 20_000_000,
            "wait_s": 600.0,
        },
        "evaluation.layerwise",
    ),
    "predict_split": ("all", "evaluation.predict_split"),
    "eval_neg_sampling": (None, "evaluation.neg_sampling"),
}
# Name -> value -> what to write instead.
_VALUES: Mapping[str, Mapping[str, str]] = {
    "cache.policy": {
        "presample": "Write auto, and partition with partition.hotness: presample; or write degree.",
        "dynamic": "Write auto, which takes the ranking of the partition folder, or degree.",
    },
    "cache.topology": {"auto": "Write the number of bytes, such as 200MB; half of cache.bytes is a good start."},
}


def without_removed(group: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group without removed ones that have their defaults; groups in it alike.

    Args:
        group: Name of the group in error messages, such as ``cache``; empty for all that a data module takes.
        given: Option -> value.

    Raises:
        OptionError: For a removed option, or a removed value of an option, with what to write instead.

    Example:
        >>> without_removed("cache", {"ratio": 0.1, "save": False})
        {'ratio': 0.1}
        >>> without_removed("", {"cache": {"policy": "dynamic"}})
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cache.policy: dynamic was removed. ...
    """
    kept = {}
    for key, value in given.items():
        name = f"{group}.{key}" if group else str(key)
        if not group and name in _MOVED:
            default, now = _MOVED[name]
            if not _is_default(value, default):
                raise OptionError(f"{name}: was renamed. Write data.{now}.")
            continue
        if name not in _OPTIONS:
            kept[key] = without_removed(name, value) if isinstance(value, Mapping) and _has_removed(name) else value
        elif not _is_default(value, _OPTIONS[name][0]):
            raise OptionError(f"{name}: was removed. {_OPTIONS[name][1]}")
    refuse_removed_values(group, kept)
    return kept


def refuse_removed_values(group: str, given: Mapping[str, Any]) -> None:
    """Raises `OptionError` where an option of the group has a value that was removed."""
    for name, values in _VALUES.items():
        of, _, key = name.rpartition(".")
        value = given.get(key) if of == group else None
        if isinstance(value, str) and value in values:
            raise OptionError(f"{name}: {value} was removed. {values[value]}")


def removed_in(text: str) -> str | None:
    """What to write instead of a removed option that a message names, as ``name: was removed. ...``; None without one."""
    text = re.sub(r"Group '([\w.]+)' does not accept option '([\w.]+)'", r"\1.\2=", text)
    if text.startswith('Parser key "data":'):
        text = re.sub(r"(?:Option '|unrecognized arguments: --)([\w.]+)", r"data.\1=", text)
    name = next((each for each in _OPTIONS if re.search(rf"\b{re.escape(each)}(?=[=. '])", f"{text} ")), None)
    if name is not None:
        return f"{name}: was removed. {_OPTIONS[name][1]}"
    moved = next((each for each in _MOVED if re.search(rf"(?<![\w.])data\.{each}(?=[=. '])", f"{text} ")), None)
    return None if moved is None else f"data.{moved}: was renamed. Write data.{_MOVED[moved][1]}."


def _has_removed(group: str) -> bool:
    return any(name.startswith(f"{group}.") for name in (*_OPTIONS, *_VALUES))


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(default, Mapping) and isinstance(value, Mapping):
        return all(key in default and default[key] == each for key, each in value.items())
    return bool(value == default)
