"""Our blocks and our SAGEConv against DGL's own: set GLT_TEST_DGL_PYTHON to a Python that has the package dgl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import glt_lightning.compat.dgl as dgl
from glt_lightning import LoaderSpec, SamplingOptions, Session, as_blocks
from glt_lightning.loader import Layer
from tests.helpers.partitions import partitioned, small_graph, small_hetero

pytestmark = pytest.mark.slow
KINDS = ("mean", "gcn", "pool")
HOPS, WIDTH, OUT = 2, 3, 4

# What DGL makes of the same graph, seeds, blocks and weights. Arrays are named block/type/what; types of edges as a:b:c.
THEIRS = """\
import sys

import dgl
import dgl.nn as dglnn
import numpy as np
import torch

given = {name: torch.from_numpy(values) for name, values in np.load(sys.argv[1]).items()}
etypes = [tuple(name.split("/")[1].split(":")) for name in given if name.startswith("graph/")]
sizes = {name.split("/")[1]: int(size) for name, size in given.items() if name.startswith("size/")}
graph = dgl.heterograph({e: tuple(given["graph/" + ":".join(e)]) for e in etypes}, sizes)
sampler = dgl.dataloading.MultiLayerFullNeighborSampler(2)
seed_type = next(name.split("/")[1] for name in given if name.startswith("seeds/"))
_, _, sampled = sampler.sample(graph, {seed_type: given["seeds/" + seed_type]})
out = {}
for number, theirs in enumerate(sampled):
    for e in etypes:
        src, dst = theirs.edges(etype=e)
        ends = theirs.srcnodes[e[0]].data[dgl.NID][src], theirs.dstnodes[e[2]].data[dgl.NID][dst]
        out[f"{number}/{':'.join(e)}/ends"] = torch.stack(ends)
    for t in graph.ntypes:
        out[f"{number}/{t}/src"] = theirs.srcnodes[t].data[dgl.NID]
        out[f"{number}/{t}/dst"] = theirs.dstnodes[t].data[dgl.NID]
    edges = {e: tuple(given[f"{number}/{':'.join(e)}/index"]) for e in etypes}
    counts = [{t: int(given[f"{number}/{t}/{side}"]) for t in graph.ntypes} for side in ("num_src", "num_dst")]
    block = dgl.create_block(edges, *counts)
    x = {t: given[f"{number}/{t}/x"] for t in graph.ntypes}
    for kind in ("mean", "gcn", "pool"):
        convs = {e: dglnn.SAGEConv(3, 4, kind) for e in etypes}
        for e, conv in convs.items():
            begin = f"{kind}/{':'.join(e)}/"
            conv.load_state_dict({n[len(begin):]: v for n, v in given.items() if n.startswith(begin)})
            ends = x[e[0]], x[e[2]][: block.num_dst_nodes(e[2])]
            out[f"{number}/{':'.join(e)}/{kind}"] = conv(block[e], ends)
np.savez(sys.argv[2], **{name: values.detach().numpy() for name, values in out.items()})
"""


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get("GLT_TEST_DGL_PYTHON")
    if not found:
        pytest.skip("needs DGL: set GLT_TEST_DGL_PYTHON to a Python that has the package dgl")
    return found


def by_type(layer: Layer, edge_types: list) -> dict:
    """Edge type -> a layer of this type alone."""
    if isinstance(layer.edge_index, torch.Tensor):
        return {edge_types[0]: layer}
    return {
        e: Layer(layer.edge_index[e], layer.size[e], layer.srcdata[e[0]], layer.dstdata[e[2]], layer.edata[e])
        for e in edge_types
    }


@pytest.mark.parametrize("typed", [False, True], ids=["one type", "several types"])
def test_blocks_and_layers_are_those_of_dgl(typed: bool, python: str, tmp_path: Path) -> None:
    data = small_hetero() if typed else small_graph()
    edges = {e: data[e].edge_index for e in data.edge_types} if typed else {("node", "to", "node"): data.edge_index}
    sizes = {t: data[t].num_nodes for t in data.node_types} if typed else {"node": data.num_nodes}
    seed_type, seeds, names = ("paper" if typed else "node"), torch.arange(3, 23), [":".join(e) for e in edges]
    given = {f"graph/{name}": index for name, index in zip(names, edges.values(), strict=True)}
    given |= {f"size/{t}": torch.tensor(size) for t, size in sizes.items()} | {f"seeds/{seed_type}": seeds}
    torch.manual_seed(0)
    convs = {(kind, e): dgl.nn.SAGEConv(WIDTH, OUT, kind) for kind in KINDS for e in edges}
    for (kind, e), conv in convs.items():
        given |= {f"{kind}/{':'.join(e)}/{name}": values for name, values in conv.state_dict().items()}
    ours: dict[str, torch.Tensor] = {}
    with Session(partitioned(data, tmp_path, 2), SamplingOptions(), seed=1) as context:
        spec = LoaderSpec(
            name="t", seeds=seeds.numpy(), node_type=seed_type, num_neighbors=[-1] * HOPS, batch_size=len(seeds)
        )
        ((_, _, blocks),) = as_blocks(context.make_loader(spec))
        for number, block in enumerate(blocks):
            x = {t: torch.randn(block.num_src_nodes(t if typed else None), WIDTH) for t in sizes}
            for t in sizes:
                sides = [side[t] if typed else side for side in (block.srcdata, block.dstdata)]
                ours |= {f"{number}/{t}/{name}": side["_ID"] for name, side in zip(("src", "dst"), sides, strict=True)}
                given |= {
                    f"{number}/{t}/num_{name}": torch.tensor(len(ours[f"{number}/{t}/{name}"]))
                    for name in ("src", "dst")
                }
                given[f"{number}/{t}/x"] = x[t]
            for e, layer in by_type(block, list(edges)).items():
                name, ends = ":".join(e), layer.edge_index
                ours[f"{number}/{name}/ends"] = torch.stack(
                    [layer.srcdata["_ID"][ends[0]], layer.dstdata["_ID"][ends[1]]]
                )
                given[f"{number}/{name}/index"] = ends
                for kind in KINDS:
                    sides = x[e[0]], x[e[2]][: layer.size[1]]
                    ours[f"{number}/{name}/{kind}"] = convs[kind, e](layer, sides).detach()
    np.savez(tmp_path / "given.npz", **{name: values.numpy() for name, values in given.items()})
    (tmp_path / "theirs.py").write_text(THEIRS)
    run = [python, "-I", "-W", "ignore", "theirs.py", "given.npz", "out.npz"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    theirs = {name: torch.from_numpy(values) for name, values in np.load(tmp_path / "out.npz").items()}
    assert theirs.keys() == ours.keys()
    for name, values in ours.items():
        what = name.rpartition("/")[2]
        if what in KINDS:
            torch.testing.assert_close(values, theirs[name], rtol=1e-5, atol=1e-5)
        elif what == "ends":  # the same edges; DGL orders them by its own rows
            assert sorted(values.T.tolist()) == sorted(theirs[name].T.tolist()), name
        else:  # the same nodes, of which the destinations are the first
            assert sorted(values.tolist()) == sorted(theirs[name].tolist()), name
            assert torch.equal(
                values[: len(ours[name.removesuffix(what) + "dst"])], ours[name.removesuffix(what) + "dst"]
            )
