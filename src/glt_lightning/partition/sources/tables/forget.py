"""Takes deleted rows out of a folder of converted tables. It keeps the ids of other nodes, by which later rows are found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from glt_lightning.base import DataError, NodeType
from glt_lightning.graph import open_regular, parse_json
from glt_lightning.partition.folder import whole_file
from glt_lightning.partition.sources.tables.columns import FACTS, load_facts, node_folder
from glt_lightning.partition.sources.tables.ids import IDS, consecutive

_FORGOTTEN = "forgotten"


def forget_tables(folder: Path, deleted: Mapping[NodeType, np.ndarray]) -> None:
    """Removes all rows of converted tables, and writes zeros in place of the ids of deleted nodes. deleted: user ids by type.

    Consecutive numbers stay: they say no more than the numbers of the nodes, which stay, too. Call it with the lock held; after
    a killed call, it ends the work.
    """
    facts = load_facts(folder)
    with open_regular(folder / FACTS) as stream:
        raw = parse_json(stream.read())
    with whole_file(folder / FACTS) as temporary:  # first: from now on nothing is partitioned of this folder
        temporary.write_text(json.dumps({**raw, _FORGOTTEN: True}, indent=1, ensure_ascii=False), "utf-8")
    for t, each in facts.items():
        gone = np.asarray(deleted.get(t, ()), np.int64)
        _forget_ids(node_folder(folder, t), gone[gone < each.num_nodes])
    rows = [*folder.glob("nodes/*/*.npy"), *folder.glob("edges/*/*.npy")]
    for path in [*(p for p in rows if p.name not in IDS), *folder.rglob(".*.tmp-*")]:  # copies of killed calls, too
        path.unlink()


def require_rows(folder: Path) -> None:
    """Raises `DataError` for converted tables that have their ids alone."""
    with open_regular(folder / FACTS) as stream:
        if parse_json(stream.read()).get(_FORGOTTEN):
            raise DataError(
                f"{folder}: compact --forget removed the rows of these converted tables. Name the partition that it wrote in "
                "partition.dir; or take the deleted rows out of your tables, delete this folder, and partition anew."
            )


@contextmanager
def _edited(path: Path) -> Iterator[np.ndarray]:
    """Yields an array to write to, which then replaces that of the file: who has mapped the file keeps it as it was."""
    with whole_file(path) as temporary:
        shutil.copyfile(path, temporary)
        found = np.load(temporary, mmap_mode="r+", allow_pickle=False)
        yield found
        found.flush()


def _forget_ids(place: Path, rows: np.ndarray) -> None:
    if not len(rows):
        return
    if (place / "ids_bytes.npy").exists():
        ends = np.load(place / "ids_offsets.npy", mmap_mode="r", allow_pickle=False)
        if len(np.load(place / "ids_bytes.npy", mmap_mode="r", allow_pickle=False)) == 0:
            return
        with _edited(place / "ids_bytes.npy") as ids:
            for begin, end in zip(ends[rows].tolist(), ends[rows + 1].tolist(), strict=True):
                ids[begin:end] = 0
    elif (place / "ids.npy").exists():
        found = np.load(place / "ids.npy", mmap_mode="r", allow_pickle=False)
        if consecutive(found) is not None:
            return
        with _edited(place / "ids.npy") as ids:
            ids[rows] = np.iinfo(np.int64).min
