"""What a user's tables call the nodes of a partition."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.graph import Manifest
from glt_lightning.partition import has_ids, is_matrix, parse_tables, tables_folder, user_ids


def own_ids(manifest: Manifest, root: str | Path, n_id: np.ndarray, node_type: str) -> np.ndarray | None:
    """int64 or text [K]; None for a graph that is not of tables, or of tables without ids, or whose converted tables are not
    below ``root``."""
    made = manifest.made_by
    folder = tables_folder(root, str(made.get("source")), str(made.get("fingerprint")))
    if not has_ids(folder, node_type):
        return None
    return user_ids(folder, n_id, node_type)


def have_ids(dataset: Any, node_type: str) -> bool:
    """Whether a data set, as the user writes it, is tables that name the nodes of a type by a column."""
    if is_matrix(dataset) or not isinstance(dataset, (Mapping, argparse.Namespace)):
        return False
    table = parse_tables(dataset).nodes.get(node_type)
    return table is not None and table.id is not None
