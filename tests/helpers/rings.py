"""Rings whose batches can be written down by hand: node v is linked to v+1 and v+2, features are ids, edge features edge ids."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import glt_lightning.compat.glt as glt

NODES = 40
U2I, I2I = ("user", "u2i", "item"), ("item", "i2i", "item")


def ring_edges(nodes: int = NODES, first: int = 1) -> Tensor:
    """Edge 2v is v -> v + first, edge 2v + 1 is v -> v + first + 1."""
    source = torch.arange(nodes).repeat_interleave(2)
    return torch.stack([source, (source + torch.tensor([first, first + 1]).repeat(nodes)) % nodes])


def ring_folder(folder: Path, parts: int = 2, strategy: str = "by_src", nodes: int = NODES) -> Path:
    """The ring as a partition folder, and ten times the ids as labels beside it."""
    glt.partition.RandomPartitioner(
        folder / "parts",
        parts,
        nodes,
        ring_edges(nodes),
        torch.arange(nodes)[:, None].float(),
        edge_feat=torch.arange(2 * nodes)[:, None].float(),
        edge_weights=torch.arange(2 * nodes) % 2,  # v -> v + 2 alone
        edge_assign_strategy=strategy,
    ).partition(progress=False)
    torch.save(torch.arange(nodes) * 10, folder / "label.pt")
    return folder


def typed_ring_folder(folder: Path, parts: int = 2, strategy: str = "by_src", nodes: int = NODES) -> Path:
    """Users v buy items v and v+1, which are linked to v+2 and v+3."""
    ids = torch.arange(nodes)[:, None].float()
    edges = torch.arange(2 * nodes)[:, None].float()
    glt.partition.RandomPartitioner(
        folder / "parts",
        parts,
        {"user": nodes, "item": nodes},
        {U2I: ring_edges(nodes, 0), I2I: ring_edges(nodes, 2)},
        {"user": ids, "item": ids + 100},
        edge_feat={U2I: edges, I2I: edges + 1000},
        node_label={"user": torch.arange(nodes) * 10},
        edge_assign_strategy=strategy,
    ).partition(progress=False)
    return folder


def dataset(folder: Path, part: int = 0, labels: bool = True) -> glt.distributed.DistDataset:
    """As a script opens it."""
    found = glt.distributed.DistDataset()
    file = folder / "label.pt" if labels else None
    found.load(str(folder / "parts"), part, graph_mode="ZERO_COPY", whole_node_label_file=file)
    return found


def part_in_memory(part: int, parts: int, typed: bool = False) -> glt.distributed.DistDataset:
    """Every ``parts``-th node of the same rings, with its edges, as a script that loaded them itself hands them over."""
    mine, edges = torch.arange(part, NODES, parts), torch.arange(2 * NODES)
    owned = edges[edges // 2 % parts == part]
    book, edge_book, nodes = torch.arange(NODES) % parts, edges // 2 % parts, glt.utils.id2idx(mine)

    def graph(first: int) -> glt.data.Graph:
        return glt.data.Graph(glt.data.Topology(ring_edges(first=first)[:, owned], owned, owned % 2), "CPU")

    def rows(ids: Tensor, more: int = 0) -> glt.data.Feature:
        return glt.data.Feature(ids[:, None].float() + more, nodes if ids is mine else glt.utils.id2idx(owned))

    labels = torch.arange(NODES) * 10
    if not typed:
        return glt.distributed.DistDataset(
            parts, part, graph(1), rows(mine), rows(owned), labels, node_pb=book, edge_pb=edge_book
        )
    return glt.distributed.DistDataset(
        parts,
        part,
        {U2I: graph(0), I2I: graph(2)},
        {"user": rows(mine), "item": rows(mine, 100)},
        {U2I: rows(owned), I2I: rows(owned, 1000)},
        {"user": labels},
        node_pb={"user": book, "item": book},
        edge_pb={U2I: edge_book, I2I: edge_book},
    )
