"""Whether two hosts have the same partition, by what their manifests say: the options it was made with, and all its files."""

from __future__ import annotations

import hashlib
import json

from glt_lightning.graph.manifest import Manifest

_COPY = "Copy one partition folder to all hosts, or partition with the same options and seed"


def files_hash(manifest: Manifest) -> str:
    """Hash of the names, shapes and checksums of all files: 32 hexadecimal digits. It takes no file but the manifest, and does
    not depend on whether that has hashes of chunks."""
    listed = [[path, e.dtype, list(e.shape), e.bytes, e.crc32] for path, e in sorted(manifest.arrays.items())]
    return hashlib.blake2b(json.dumps(listed).encode(), digest_size=16).hexdigest()


def partition_id(manifest: Manifest) -> str:
    """What hosts compare before they work together."""
    return f"{manifest.options_hash} {files_hash(manifest)}"


def difference(theirs: object, ours: str) -> str:
    """How a partition elsewhere differs from the one here, and what to do. theirs, ours: `partition_id`."""
    (options, _, files), (own, _, own_files) = str(theirs)[:100].partition(" "), ours.partition(" ")
    if options != own:
        return f"options_hash in manifest.json is {options!r} there and {own!r} here. {_COPY}."
    return (
        f"they were made with the same options, and their files differ (hash {files!r} there, {own_files!r} here). {_COPY}; "
        "`partition --verify` finds a file that was changed."
    )
