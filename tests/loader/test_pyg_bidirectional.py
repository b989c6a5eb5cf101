"""The edges of PyG's bidirectional batches, against PyG's own function."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric.sampler.base import to_bidirectional

from glt_lightning.base import DataError, SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.loader.transforms import PyGBidirectional
from tests.helpers.partitions import partitioned, small_graph, small_hetero

SPEC = LoaderSpec(name="own", split="train", num_neighbors=[4, 3], batch_size=16)


def batches(folder: Path, data, **sampling):
    whole = partitioned(data, folder, undirected=True)
    with Session(whole, SamplingOptions(**sampling)) as context:
        return next(iter(context.make_loader(SPEC))).clone(), whole


def test_one_edge_type(tmp_path: Path) -> None:
    data = small_graph()
    plain, _ = batches(tmp_path, data, with_edge=True)
    attrs = {int(i): row for i, row in zip(plain.e_id, plain.edge_attr, strict=True)}
    (src, dst), ids = plain.edge_index, plain.e_id
    row, col, _ = to_bidirectional(src, dst, src, dst)
    found = PyGBidirectional()(plain)
    assert torch.equal(found.edge_index, torch.stack([row, col]))
    lowest: dict[tuple[int, int], int] = {}
    for s, d, i in zip(src.tolist(), dst.tolist(), ids.tolist(), strict=True):
        for pair in ((s, d), (d, s)):
            lowest[pair] = min(i, lowest.get(pair, i))
    assert found.e_id.tolist() == [lowest[pair] for pair in zip(row.tolist(), col.tolist(), strict=True)]
    assert torch.equal(found.edge_attr, torch.stack([attrs[int(i)] for i in found.e_id]))
    assert "num_sampled_edges" not in found


def test_several_edge_types(tmp_path: Path) -> None:
    plain, _ = batches(tmp_path, small_hetero(), with_edge=True)
    edges = {key: store.edge_index for key, store in zip(plain.edge_types, plain.edge_stores, strict=True)}
    found = PyGBidirectional()(plain)
    for key, (src, dst) in edges.items():
        relation = key[1].removeprefix("rev_") if key[1].startswith("rev_") else f"rev_{key[1]}"
        other = (key[2], relation, key[0]) if (key[2], relation, key[0]) in edges else key
        row, col, _ = to_bidirectional(src, dst, edges[other][0], edges[other][1])
        assert torch.equal(found[key].edge_index, torch.stack([row, col]))
        assert "e_id" not in found[key]


def test_other_edges_are_refused(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path)
    with Session(whole) as context:
        for kind in ("induced", "bidirectional"):
            spec = LoaderSpec(
                name="own", num_neighbors=[2], batch_size=4, subgraph_type=kind, transform=PyGBidirectional()
            )
            with pytest.raises(DataError, match="PyGBidirectional: expected sampled edges"):
                next(iter(context.make_loader(spec)))
