"""From a user's graph to a partition folder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import glt_lightning
from glt_lightning.data.arrays import ArrayWriter
from glt_lightning.data.manifest import MANIFEST, ArrayEntry, Manifest, SplitEntry, node_path, options_hash, split_path
from glt_lightning.errors import DataError, PartitionError
from glt_lightning.options import Normalize, PartitionOptions
from glt_lightning.partition.assign import random_parts
from glt_lightning.partition.checks import check_graph, resolve_splits
from glt_lightning.partition.edges import write_edges
from glt_lightning.partition.folder import exclusive, written_whole
from glt_lightning.partition.layout import NodeLayout, number_nodes
from glt_lightning.partition.normalize import transform_for
from glt_lightning.partition.relations import Relation, stored_relations
from glt_lightning.partition.rows import write_rows
from glt_lightning.partition.sources.base import GraphSource
from glt_lightning.types import NodeType, edge_type_str

_log = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 3600.0
_INT32_MAX = 2**31 - 1


def made_by(
    source: GraphSource,
    options: PartitionOptions,
    undirected: bool | None,
    normalize: Normalize,
    splits: Mapping[str, Any] | None = None,
    wide_ids: bool = False,
) -> dict[str, Any]:
    """How a partition is made: what its manifest records and its hash is taken of."""
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
        "algorithm": options.algorithm,
        "num_parts": options.num_parts,
        "seed": options.seed,
        "wide_ids": wide_ids,
        "package_version": glt_lightning.__version__,
    }


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
    return Path(root) / "partitions" / f"{source.name}-{options.algorithm}-{options.num_parts}-{short}"


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
) -> Manifest:
    """Partitions ``source`` into ``out_dir`` and returns the manifest; a folder that is already there is reused."""
    target = Path(out_dir)
    made = made_by(source, options, undirected, normalize, splits, wide_ids)
    if (target / MANIFEST).exists():
        return _reuse(target, made)
    with exclusive(target, timeout_s):
        if target.exists():  # another process made it while we waited
            return _reuse(target, made)
        with written_whole(target) as folder:
            builder = _Builder(source, folder, options, made)
            return builder.build(resolve_splits(source, splits))


def _reuse(target: Path, made: Mapping[str, Any]) -> Manifest:
    manifest = Manifest.load(target)
    if manifest.options_hash != options_hash(made):
        old = manifest.made_by
        keys = [k for k in made if k != "package_version" and old.get(k) != made[k]]
        what = "; ".join(f"{k}: {made[k]!r} given, {old.get(k)!r} on disk" for k in keys)
        raise PartitionError(
            f"{target}: holds a partition made otherwise ({what}). Delete the folder, choose another partition.dir, or leave "
            "partition.dir out to get one folder per choice of options."
        )
    _log.info("%s: reusing this partition.", target)
    return manifest


class _Builder:
    def __init__(self, source: GraphSource, folder: Path, options: PartitionOptions, made: dict[str, Any]) -> None:
        self.source, self.folder, self.options, self.made = source, folder, options, made
        self.schema, self.relations = stored_relations(source.schema, made["undirected"])
        self.num_nodes = [source.num_nodes[t] for t in self.schema.node_types]
        self.offsets = np.concatenate([[0], np.cumsum(self.num_nodes)])
        wide = made["wide_ids"]
        self.id_dtype = np.dtype(np.int64 if wide or self.offsets[-1] > _INT32_MAX else np.int32)
        most = max((source.edges(r.source).num_edges * (2 if r.both else 1) for r in self.relations), default=0)
        self.edge_id_dtype = np.dtype(np.int64 if wide or most > _INT32_MAX else np.int32)
        self.arrays: dict[str, ArrayEntry] = {}

    def build(self, splits: Mapping[str, tuple[NodeType, np.ndarray]]) -> Manifest:
        check_graph(self.source, self.made["normalize"])
        hotness = self._hotness()
        layouts = [
            number_nodes(
                random_parts(n, self.options.num_parts, self.options.seed, t), h, self.options.num_parts, self.id_dtype
            )
            for t, n, h in zip(self.schema.node_types, self.num_nodes, hotness, strict=True)
        ]
        for index, layout in enumerate(layouts):
            self._write_nodes(index, layout)
        for index, relation in enumerate(self.relations):
            self._write_edges(index, relation, layouts)
        for name, (_, ids) in splits.items():
            with ArrayWriter(self.folder, split_path(name), np.int64) as writer:
                writer.write(ids)
            self.arrays[writer.path] = writer.close()
        manifest = self._manifest(layouts, splits)
        manifest.save(self.folder)
        return manifest

    def _hotness(self) -> list[np.ndarray]:
        hot = [np.zeros(n, np.int64) for n in self.num_nodes]
        for relation in self.relations:
            s, _, d = relation.source
            si, di = self.schema.node_index(s), self.schema.node_index(d)
            at = 0
            for src, dst in self.source.edges(relation.source).chunks(1 << 22):
                for ids, i, end in ((src, si, 0), (dst, di, 1)):
                    bad = (ids < 0) | (ids >= self.num_nodes[i])
                    if bad.any():
                        k = int(bad.argmax())
                        raise DataError(
                            f"edge_index of {edge_type_str(relation.source)}: column {at + k} has "
                            f"{('source', 'destination')[end]} {ids[k]}, but there are {self.num_nodes[i]} nodes of that type."
                        )
                if not relation.flip:
                    hot[si] += np.bincount(src, minlength=len(hot[si]))
                if relation.flip or relation.both:
                    hot[di] += np.bincount(dst, minlength=len(hot[di]))
                at += len(src)
        return hot

    def _write_nodes(self, index: int, layout: NodeLayout) -> None:
        attrs = self.source.node_attrs(self.schema.node_types[index])
        for part, (begin, end) in enumerate(zip(layout.bounds, layout.bounds[1:], strict=False)):
            with ArrayWriter(self.folder, node_path(part, index, "n_id"), self.id_dtype) as writer:
                writer.write(layout.user_ids[begin:end])
            self.arrays[writer.path] = writer.close()
        for name, rows in attrs.items():
            transform = transform_for(self.made["normalize"], rows) if name == "x" else None
            self.arrays |= write_rows(self.folder, index, name, rows, layout, transform)

    def _write_edges(self, index: int, relation: Relation, layouts: list[NodeLayout]) -> None:
        src, dst = self.schema.source_types()[index], self.schema.destination_types()[index]
        self.arrays |= write_edges(
            self.folder,
            index,
            relation,
            self.source.edges(relation.source),
            self.source.edge_attrs(relation.source),
            (layouts[src], layouts[dst]),
            int(self.offsets[src]),
            self.id_dtype,
            self.edge_id_dtype,
        )

    def _manifest(self, layouts: list[NodeLayout], splits: Mapping[str, tuple[NodeType, np.ndarray]]) -> Manifest:
        edges = [
            sum(self.arrays[f"part{p}/edges/{r}/indices.npy"].shape[0] for p in range(self.options.num_parts))
            for r in range(len(self.relations))
        ]
        return Manifest(
            schema=self.schema,
            num_parts=self.options.num_parts,
            num_nodes=tuple(self.num_nodes),
            num_edges=tuple(edges),
            bounds=tuple(layout.bounds for layout in layouts),
            id_dtype=self.id_dtype.name,
            edge_id_dtype=self.edge_id_dtype.name,
            num_classes=self.source.num_classes,
            target_type=self.source.target_type,
            splits={name: SplitEntry(t, len(ids)) for name, (t, ids) in splits.items()},
            arrays=self.arrays,
            made_by=self.made,
        )
