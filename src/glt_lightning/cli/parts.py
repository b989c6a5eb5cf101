"""The two stages of ``python -m lightning partition``: ``--assign_only`` and ``--parts``."""

from __future__ import annotations

import re
from pathlib import Path

from glt_lightning.base import OptionError
from glt_lightning.lightning import GLTDataModule
from glt_lightning.partition import GraphSource, assign_graph, finished_parts, partition_dir, partition_parts


def part_numbers(text: str) -> list[int]:
    """``0,2`` as numbers. Raises `OptionError`."""
    if re.fullmatch(r"\d+(,\d+)*", text) is None:
        raise OptionError(f"--parts: expected numbers of parts such as 0,2, got {text!r}.")
    return [int(number) for number in text.split(",")]


def assign_only(data: GLTDataModule, file: Path) -> None:
    """Assigns nodes to parts, saves that and says how many nodes each part gets."""
    options = data.partition.assuming(data.fanouts_of_edges, data.batch_size)
    sizes = assign_graph(_source(data), file, options, undirected=data.undirected)
    print(f"assigned: {file}")
    for node_type, counts in sizes.items():
        print(f"  {node_type}: {', '.join(f'{count:,}' for count in counts)} nodes in parts 0 to {len(counts) - 1}")
    print(f"Give it as --data.partition.algorithm {file} on every host, with all other options unchanged.", flush=True)


def write_parts(data: GLTDataModule, parts: list[int]) -> None:
    """Writes some parts and says which are missing."""
    source = _source(data)
    folder = partition_dir(data.root, source, data.partition, data.undirected, data.normalize)
    manifest = partition_parts(
        source, folder, data.partition_options, parts, undirected=data.undirected, normalize=data.normalize
    )
    if manifest is not None:
        print(f"complete: {folder}", flush=True)
        return
    missing = sorted(set(range(data.partition.num_parts)) - set(finished_parts(folder)))
    print(f"{folder}: has part {_listed(parts)}, lacks {_listed(missing)} of {data.partition.num_parts}", flush=True)


def _source(data: GLTDataModule) -> GraphSource:
    if data.dataset is None:
        raise OptionError("dataset: not given. Name the graph to partition: demo, graph.npz, ogbn-products.")
    return data.source


def _listed(parts: list[int]) -> str:
    return ", ".join(map(str, sorted(set(parts))))
