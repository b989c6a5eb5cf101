"""From a user's graph to a partition folder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glt_lightning import __version__
from glt_lightning.data.manifest import MANIFEST, Manifest, options_hash
from glt_lightning.errors import PartitionError
from glt_lightning.options import Normalize, PartitionOptions
from glt_lightning.partition.assign import Assigner, assigner_of
from glt_lightning.partition.builder import Builder
from glt_lightning.partition.checks import resolve_splits
from glt_lightning.partition.folder import exclusive, whole_folder
from glt_lightning.partition.progress import Progress
from glt_lightning.partition.sources.base import GraphSource

_log = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 3600.0


def made_by(
    source: GraphSource,
    options: PartitionOptions,
    undirected: bool | None,
    normalize: Normalize,
    splits: Mapping[str, Any] | None = None,
    wide_ids: bool = False,
    assigner: Assigner | None = None,
) -> dict[str, Any]:
    """How a partition is made: what its manifest records and its hash is taken of.

    assigner: as of `partition_graph`.
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
        "normalize": normalize,
        "splits": own,
        **_assignment(options),
        **(assigner or assigner_of(options)).made_by,
        "hotness": options.hotness,
        "num_neighbors": options.num_neighbors,
        "batch_size": options.batch_size,
        "wide_ids": wide_ids,
        "package_version": __version__,
    }


def _assignment(options: PartitionOptions) -> dict[str, Any]:
    """What the assignment of nodes to parts depends on."""
    made: dict[str, Any] = {"algorithm": options.algorithm, "num_parts": options.num_parts, "seed": options.seed}
    if options.algorithm in ("metis", "streaming"):
        made |= {"balance": options.balance, "imbalance": options.imbalance, "node_weight": options.node_weight}
    if options.algorithm == "streaming":
        made |= {"passes": options.passes, "memory_bytes": options.memory_bytes}
    return made


def partition_dir(
    root: str | Path,
    source: GraphSource,
    options: PartitionOptions,
    undirected: bool | None,
    normalize: Normalize,
    splits: Mapping[str, Any] | None = None,
) -> Path:
    """The folder of a partition: ``options.dir``, else one below ``root`` whose name tells data and options."""
    if options.dir is not None:
        return Path(options.dir)
    short = options_hash(made_by(source, options, undirected, normalize, splits))[:8]
    return Path(root) / "partitions" / f"{source.name}-{options.algorithm_name}-{options.num_parts}-{short}"


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
) -> Manifest:
    """Partitions ``source`` into ``out_dir`` and returns the manifest; a folder that is already there is reused.

    assigner: who assigns nodes to parts; None: whom ``options.algorithm`` names.
    """
    target = Path(out_dir)
    assigner = assigner or assigner_of(options)
    made = made_by(source, options, undirected, normalize, splits, wide_ids, assigner)
    if (target / MANIFEST).exists():
        return _reuse(target, made)
    with exclusive(target, timeout_s):
        if target.exists() and not _is_empty_folder(target):  # perhaps another process made it while we waited
            return _reuse(target, made)
        with whole_folder(target) as folder:
            builder = Builder(source, folder, options, assigner, made, Progress(progress))
            return builder.build(resolve_splits(source, splits))


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _reuse(target: Path, made: Mapping[str, Any]) -> Manifest:
    manifest = Manifest.load(target)
    if manifest.options_hash != options_hash(made):
        old = manifest.made_by
        keys = [k for k in {**made, **old} if k != "package_version" and old.get(k) != made.get(k)]
        what = "; ".join(f"{k}: {made.get(k)!r} given, {old.get(k)!r} on disk" for k in keys)
        raise PartitionError(
            f"{target}: holds a partition made otherwise ({what}). Delete the folder or choose another; without "
            "partition.dir there is one folder per choice of options."
        )
    _log.info("%s: reusing this partition.", target)
    return manifest
