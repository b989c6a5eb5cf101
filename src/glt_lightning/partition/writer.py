"""Writes a user's graph as a partition folder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glt_lightning.base import Fanouts, Normalize, PartitionError, PartitionOptions, __version__
from glt_lightning.graph import MANIFEST, Manifest, options_hash
from glt_lightning.partition.assign import assigner_of
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.edge_splits.source import LinkSource
from glt_lightning.partition.folder import LOCK_TIMEOUT_S, exclusive, lasting_path, remove_lasting
from glt_lightning.partition.sources.base import GraphSource
from glt_lightning.partition.splits import resolve_splits


def made_by(
    source: GraphSource,
    options: PartitionOptions,
    undirected: bool | None,
    normalize: Normalize,
    splits: Mapping[str, Any] | None = None,
    wide_ids: bool = False,
    assigner: Assigner | None = None,
    record: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the options and the hash of the data that determine a partition. They are recorded in its manifest and hashed in
    its name.

    assigner, record: as in `partition_graph`.
    """
    own = None
    if splits is not None:
        digest = hashlib.blake2b(digest_size=8)
        for name, (node_type, ids) in resolve_splits(source, splits).items():
            digest.update(f"{name}:{node_type}:{len(ids)}:".encode() + ids.tobytes())
        own = digest.hexdigest()
    return {
        "source": source.name,
        "fingerprint": source.fingerprint,
        "undirected": bool(undirected),
        **({"reverse_ids": "columns"} if undirected else {}),  # folders of earlier releases: E + column
        "normalize": normalize,
        "splits": own,
        **_assignment(options),
        **(record or {}),
        **(assigner or assigner_of(options)).made_by,
        "hotness": options.hotness,
        "num_neighbors": options.assumed_num_neighbors,
        "batch_size": options.assumed_batch_size,
        "wide_ids": wide_ids,
        **({"transforms": transforms} if (transforms := getattr(source, "transforms", None)) else {}),
        **({"storage": _sorted(options.storage)} if options.storage else {}),
        **({"weights": sorted(set(options.weights))} if options.weights else {}),
        **({} if options.time_attr is None else {"time_attr": options.time_attr}),
        **({"edge_splits": source.edge_splits_hash} if isinstance(source, LinkSource) else {}),
        "package_version": __version__,
    }


def _assignment(options: PartitionOptions) -> dict[str, Any]:
    """The options on which the assignment of nodes to parts depends."""
    made: dict[str, Any] = {"algorithm": options.algorithm, "num_parts": options.num_parts, "seed": options.seed}
    if options.algorithm in ("metis", "streaming"):
        made |= {"balance": options.balance, "imbalance": options.imbalance, "node_weight": options.node_weight}
        made |= {"passes": options.passes}
    if options.algorithm == "streaming":
        made |= {"memory_bytes": options.memory_bytes}
    return made


def partition_dir(
    root: str | Path,
    source: GraphSource,
    options: PartitionOptions,
    undirected: bool | None,
    normalize: Normalize,
    splits: Mapping[str, Any] | None = None,
) -> Path:
    """Returns the folder of a partition: ``options.dir``, else a folder below ``root`` named after the data and the options.

    Without given fan-outs and batch size the name does not depend on them, so that a run with other batches finds the existing
    partition.

    Args:
        root: Folder of downloads and partitions.
        source: The graph.
        options: Options of the partition.
        undirected, normalize, splits: As for `partition_graph`.

    Example:
        >>> source = open_source("graph.npz", "data")
        >>> partition_dir("data", source, PartitionOptions(num_parts=2), None, "none").name
        'graph-random-2-...'
    """
    if options.dir is not None:
        return Path(options.dir)
    made = made_by(source, options, undirected, normalize, splits)
    below = f"{source.name}-{options.algorithm_name}-{options.num_parts}-"
    folder = Path(root) / "partitions"
    given = {"num_neighbors": options.num_neighbors, "batch_size": options.batch_size}

    def named(by: Mapping[str, Any]) -> Path:
        return folder / f"{below}{options_hash(by)[:8]}"

    names = [named(made), named(made_before(made))]
    if options.depends_on_batches and None in given.values():
        # An earlier release named the folder by the defaults, which it ranked for.
        names = [named(made | given), names[0], named(made_before(made | given)), names[1]]
    if names[0].exists():
        return names[0]
    return next((each for each in names if (each / MANIFEST).exists()), names[0])


def partition_graph(
    source: GraphSource,
    out_dir: str | Path,
    options: PartitionOptions,
    *,
    undirected: bool | None = None,
    normalize: Normalize = "none",
    splits: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    wide_ids: bool = False,
    timeout_s: float = LOCK_TIMEOUT_S,
    assigner: Assigner | None = None,
    record: Mapping[str, Any] | None = None,
) -> Manifest:
    """Partitions ``source`` into ``out_dir`` and returns the manifest.

    A finished folder of the same options is reused, and a run that was killed is continued.

    Args:
        source: The graph, as `open_source` gives it.
        out_dir: Folder of the partition.
        options: Options of the partition.
        undirected: True adds the reverse of every edge.
        normalize: ``none``, ``rows`` or ``standardize``, for ``x``.
        splits: Seeds by name (``train``, ``val``, ``test``) in place of those of the source: ids, or (node type, ids).
        progress: Whether to show a progress bar. None: on a terminal.
        wide_ids: Store ids as int64, even if int32 suffices.
        timeout_s: How long to wait for another process that writes the same folder, in seconds.
        assigner: Assigns nodes to parts. None: the algorithm that ``options.algorithm`` names.
        record: Further JSON values for ``made_by`` of the manifest.

    Raises:
        DataError: For invalid data.
        OptionError: For options that do not fit the data.
        PartitionError: If the folder cannot be written or was written with different options.

    Example:
        >>> source = open_source("graph.npz", "data")
        >>> options = PartitionOptions(num_parts=2, algorithm="metis")
        >>> partition_graph(source, "metis", options, progress=False).num_nodes
        (10,)
    """
    target = Path(out_dir)
    options = follow_batches(options, target)
    assigner = assigner or assigner_of(options)
    made = made_by(source, options, undirected, normalize, splits, wide_ids, assigner, record)
    if (target / MANIFEST).exists():
        return reuse(target, made)
    # below are imports of what makes partitions, which a fit on one that is there does not need
    if options.engine == "array":
        from glt_lightning.partition.tasks.array import array_number, help_along

        if array_number() > 0:
            help_along(run_folder(target, made), (target / MANIFEST).exists, timeout_s)
            return reuse(target, made)
    with exclusive(target, timeout_s):
        if target.exists() and not _is_empty_folder(target):  # another process may have written it during the wait
            return reuse(target, made)
        from glt_lightning.partition.run import write_partition

        return write_partition(source, target, options, splits, assigner, made, progress)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _sorted(given: Any) -> Any:
    return {name: _sorted(given[name]) for name in sorted(given)} if isinstance(given, dict) else given


# A partition that is there already: which one it is, and whether it is of the same data and options.


_log = logging.getLogger(__name__)


def run_folder(target: Path, made: Mapping[str, Any]) -> Path:
    """Returns the folder of a run while it lasts. A run of the same data and options has the same one."""
    return lasting_path(target, options_hash(made)[:16])


COMPACTED = "compacted"  # in a manifest's made_by: the version of another folder that the partition was made of


def made_before(made: Mapping[str, Any]) -> dict[str, Any]:
    """What earlier releases recorded of the same data and options: there the reverse of column k has the id E + k."""
    return {key: value for key, value in made.items() if key != "reverse_ids"}


def reuse(target: Path, made: Mapping[str, Any]) -> Manifest:
    """The manifest of a finished folder. Raises `PartitionError` with the differences if its options or data are not those
    of ``made``."""
    manifest = Manifest.load(target)
    old = manifest.made_by
    if COMPACTED in old:  # the same data and options, and rows that were appended to it
        if old[COMPACTED].get("forget"):  # the user's tables no longer have the deleted rows, either
            made = {**made, "fingerprint": old.get("fingerprint")}
        old = {key: value for key, value in old.items() if key not in (COMPACTED, "overlay")}
    if options_hash(old) not in (options_hash(made), options_hash(made_before(made))):
        keys = [k for k in {**made_before(made), **old} if k != "package_version" and old.get(k) != made.get(k)]
        what = "; ".join(f"{k}: {old.get(k)!r} on disk, {made.get(k)!r} given" for k in keys)
        raise PartitionError(
            f"{target}: this partition was written with different options or data ({what}). Delete the folder, choose another, "
            "or drop partition.dir: each choice of options then gets a folder of its own."
        )
    remove_lasting(target)
    _log.info("%s: this partition exists and has the same options and data; using it.", target)
    return manifest


def follow_batches(
    options: PartitionOptions, folder: Path, num_neighbors: Fanouts | None = None, batch_size: int | None = None
) -> PartitionOptions:
    """Completes options that have no fan-outs or batch size: with those of the partition in ``folder``, if there is one or a
    part of one; else with ``num_neighbors`` and ``batch_size``, those of training.

    A partition is not made anew for other batches: its ranking hardly changes with them, and making it may take hours.
    """
    if options.num_neighbors is not None and options.batch_size is not None:
        return options
    there = Manifest.load(folder).made_by if (folder / MANIFEST).exists() else None
    if there is None:
        return options.assuming(num_neighbors, batch_size) if options.depends_on_batches else options
    found = options.assuming(there.get("num_neighbors"), there.get("batch_size"))
    wanted = options.assuming(num_neighbors, batch_size)
    if num_neighbors is not None and options.depends_on_batches and _batches(found) != _batches(wanted):
        _log.info(
            "%s: its rows are ranked for %s; this run has %s, for which the ranking is much the same. To rank for this run, "
            "set data.partition.num_neighbors and batch_size: that makes another partition.",
            folder,
            _batches(found),
            _batches(wanted),
        )
    return found


def _batches(options: PartitionOptions) -> str:
    return f"num_neighbors {options.assumed_num_neighbors}, batch_size {options.assumed_batch_size}"
