"""Random typed graphs: induced subgraphs are those of the user's list of edges, and all batches are the same however the graph is
cut and whoever has its rows, with seeds of several types and any way to draw."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import k_hop_subgraph

from glt_lightning.base import SamplingOptions
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.sampling import KHopSampler
from tests.helpers.contents import contents
from tests.helpers.owners import split_up
from tests.helpers.partitions import partitioned
from tests.helpers.servers import open_farm
from tests.loader.test_subgraph_type import check_induced

NODES = 40


def random_graph(rng: np.random.Generator) -> HeteroData:
    """Two or three node types and up to five edge types, with parallel edges, self loops and nodes without edges."""
    data, names = HeteroData(), "abc"[: rng.integers(2, 4)]
    for name in names:
        data[name].x = torch.arange(NODES, dtype=torch.float32)[:, None]
    ends = [("a", "r0", "a"), ("b", "r1", "a")]
    ends += [(rng.choice([*names]), f"r{i}", rng.choice([*names])) for i in range(2, rng.integers(3, 6))]
    for edge_type in ends:
        count = int(rng.integers(1, 200))
        store = data[tuple(map(str, edge_type))]
        store.edge_index = torch.from_numpy((rng.random((2, count)) ** 2 * NODES).astype(np.int64))
        store.edge_attr = torch.arange(2 * count, dtype=torch.float32).view(-1, 2)
    return data


def specs(data: HeteroData, rng: np.random.Generator) -> list[LoaderSpec | LinkSpec]:
    """Of nodes and of edges of several types, disjoint or not, with the edges that each ``subgraph_type`` has."""
    hops = int(rng.integers(1, 3))
    fanouts = {"__".join(e): [int(k) for k in rng.choice([-1, 0, 1, 3], hops)] for e in data.edge_types}
    fanouts["a__r0__a"] = [2] * hops  # some hop has to draw from each type of the seeds
    plain: dict[str, Any] = {"num_neighbors": fanouts, "batch_size": 12, "shuffle": True}
    seeds = {t: rng.integers(0, NODES, 15) for t in ("a", "b")}
    edges = {name: rng.integers(0, NODES, (2, 15)) for name in ("a__r0__a", "b__r1__a")}
    made: list[LoaderSpec | LinkSpec] = []
    for kind, disjoint in itertools.product(("directional", "bidirectional", "induced"), (False, True)):
        each = plain | {"name": f"{kind} {disjoint}", "subgraph_type": kind, "disjoint": disjoint}
        made.append(LoaderSpec(**each, seeds=seeds))
        links = {"edge_label_index": edges, "neg_sampling": "binary", "exclude_target_edges": "reverse"}
        made.append(LinkSpec(**each, **links))
    return made


def loader_of(context: Session, spec: LoaderSpec | LinkSpec):
    return context.make_loader(spec)


def arrays_of(arrays) -> dict[str, Any]:
    return {name: np.array(array).tolist() for name, array in arrays.items()}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(16))
def test_the_same_everywhere_and_all_edges_among_the_nodes(tmp_path: Path, number: int) -> None:
    rng = np.random.default_rng(number)
    data = random_graph(rng)
    wanted = specs(data, rng)
    sampling = SamplingOptions(method="labor" if number % 2 else "neighbor", with_edge=True)
    single, cut = (partitioned(data, tmp_path, parts) for parts in (1, 3))
    here, remote = split_up(cut, [[1], [0], [2]])
    with Session(single, sampling, seed=number) as whole, Session(cut, sampling, seed=number) as parts:
        for spec in wanted:
            found = list(loader_of(whole, spec))
            loader = loader_of(parts, spec)
            assert [contents(batch) for batch in loader] == [contents(batch) for batch in found]
            config, requests = loader._config, list(loader.plan.requests(0))
            local, routed = KHopSampler(cut, config), KHopSampler(here, config, remote=remote)
            drafts = [arrays_of(local.draft(request).values()) for request in requests]
            assert [arrays_of(routed.draft(request).values()) for request in requests] == drafts
            if number % 5 == 0:
                with open_farm("in process") as farm:
                    producer = farm.producer(farm.peer(farm.serve(cut).address))
                    assert [arrays_of(s.arrays) for s in producer.stream(config, iter(requests))] == drafts
            if spec.subgraph_type == "induced" and not spec.disjoint and isinstance(spec, LoaderSpec):
                for batch in found:
                    check_induced(batch, data)


@pytest.mark.parametrize("number", range(3))
def test_all_neighbours_are_the_nodes_of_pyg(tmp_path: Path, number: int) -> None:
    """With fan-outs -1: nodes and edges of its `k_hop_subgraph`."""
    rng = np.random.default_rng(number)
    edge_index = torch.from_numpy((rng.random((2, 150)) ** 2 * 80).astype(np.int64))
    data, seeds = Data(edge_index=edge_index, num_nodes=80), rng.choice(80, 6, replace=False)
    hops = 1 + number % 2
    spec = LoaderSpec(name="s", seeds=seeds, num_neighbors=[-1] * hops, batch_size=6, subgraph_type="induced")
    with Session(partitioned(data, tmp_path, 2)) as context:
        (batch,) = context.make_loader(spec)
    nodes, _, _, kept = k_hop_subgraph(torch.from_numpy(seeds), hops, edge_index, num_nodes=80)
    assert sorted(batch.n_id.tolist()) == nodes.tolist()
    assert sorted(batch.e_id.tolist()) == torch.nonzero(kept).flatten().tolist()
