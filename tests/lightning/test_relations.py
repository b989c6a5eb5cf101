"""Decoders of relations give the scores of PyG's models of knowledge graphs, for pairs and for all pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from torch_geometric.data import HeteroData
from torch_geometric.nn import kge

from glt_lightning import LinkPredictor
from glt_lightning.base import OptionError
from glt_lightning.models.relations import DECODERS, DistMult

NODES, WIDTH = 12, 8
HALVES = {"complex": kge.ComplEx, "rotate": kge.RotatE}
WHOLE = {"distmult": kge.DistMult, "transe": kge.TransE}


def theirs(name: str, decoder: Any, rows: torch.Tensor) -> torch.Tensor:
    """Scores [N, N] by PyG, from the same numbers."""
    if name in WHOLE:
        model = WHOLE[name](NODES, 1, WIDTH)
        given = {"node_emb.weight": rows, "rel_emb.weight": decoder.relation[None]}
    else:
        model = HALVES[name](NODES, 1, WIDTH // 2)
        re, im = rows.chunk(2, dim=1)
        given = {"node_emb.weight": re, "node_emb_im.weight": im}
        if name == "complex":
            rel_re, rel_im = decoder.relation.chunk(2)
            given |= {"rel_emb.weight": rel_re[None], "rel_emb_im.weight": rel_im[None]}
        else:
            given["rel_emb.weight"] = decoder.angle[None]
    model.load_state_dict({key: value.detach() for key, value in given.items()})
    heads, tails = torch.cartesian_prod(torch.arange(NODES), torch.arange(NODES)).T
    found: torch.Tensor = model(heads, torch.zeros_like(heads), tails).view(NODES, NODES)
    return found + 1 if name == "transe" else found  # whose margin is in its loss


@pytest.mark.parametrize("name", DECODERS)
def test_the_scores_of_pyg(name: str) -> None:
    torch.manual_seed(0)
    decoder, rows = DECODERS[name](WIDTH), torch.randn(NODES, WIDTH)
    expected = theirs(name, decoder, rows)
    torch.testing.assert_close(decoder.all_pairs(rows, rows), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(decoder(rows[:, None], rows[None]), expected, rtol=1e-5, atol=1e-5)
    if isinstance(decoder, DistMult):
        torch.testing.assert_close(decoder.transformed(rows) @ rows.T, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_gradients(name: str) -> None:
    torch.manual_seed(0)
    decoder = DECODERS[name](4).double()
    pair = [torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    torch.autograd.gradcheck(decoder, pair)


@pytest.mark.parametrize("name", DECODERS)
def test_each_edge_type_has_its_relation(make_data: Any, make_trainer: Any, name: str) -> None:
    """Three relations over one ring of nodes are trained together; every relation's numbers change, and each is ranked."""
    nodes, graph = torch.arange(40), HeteroData()
    graph["thing"].x = torch.nn.functional.one_hot(nodes).float()
    for relation, step in (("next", 1), ("second", 2), ("back", -1)):
        graph["thing", relation, "thing"].edge_index = torch.stack([nodes, (nodes + step) % 40])
    types = [f"thing__{relation}__thing" for relation in ("back", "next", "second")]
    links = {
        "edge_splits": {t: {"num_val": 0.1, "num_test": 0.1, "neg_sampling_ratio": 0} for t in types},
        "neg_sampling": "triplet",
    }
    data = make_data(dataset=graph, task="link", seeds={"input_type": types}, links=links, num_neighbors=[2])
    seed_everything(0, verbose=False)
    described = {"edge_type": data.link_type, "metadata": data.metadata, "num_nodes": data.num_nodes}
    model = LinkPredictor(
        data.num_features, decoder=name, loss="softmax", hidden_channels=8, num_layers=1, metrics=["mrr"], **described
    )
    before = {key: value.clone() for key, value in model.decoders.state_dict().items() if "margin" not in key}
    trainer = make_trainer(max_epochs=1)
    trainer.fit(model, data)
    assert len(before) == 3
    assert not any(torch.equal(before[key], model.decoders.state_dict()[key]) for key in before)
    assert {f"val_mrr/{t}" for t in types} <= set(trainer.callback_metrics)


def test_a_decoder_of_an_odd_width_is_refused() -> None:
    for name in ("complex", "rotate"):
        with pytest.raises(OptionError, match="hidden_channels: expected an even number, got 7"):
            LinkPredictor(3, decoder=name, hidden_channels=7)
    with pytest.raises(
        OptionError, match="decoder: expected dot, bilinear, mlp, distmult, complex, transe, rotate; got 'rescal'"
    ):
        LinkPredictor(3, decoder="rescal")
