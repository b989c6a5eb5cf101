"""`LinkPredictor` takes batches of edges under PyG's names, learns from them, and its metrics are of all batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData

from glt_lightning import HitsAtK, LinkPredictor
from glt_lightning.base import DataError, OptionError
from glt_lightning.models.link_scores import LOSSES, LinkScores, make_decoder, score_links

NODES, BLOCKS, WIDTH = 60, 3, 8
USERS, ITEMS = ("user", "buys", "item"), ("item", "rev_buys", "user")


def graph(seed: int = 0) -> tuple[Tensor, Tensor]:
    """(x [N, WIDTH], edges [2, E] sorted by destination) of three blocks; the features tell the block, with noise."""
    made = torch.Generator().manual_seed(seed)
    block = torch.arange(NODES) % BLOCKS
    x = functional.one_hot(block, WIDTH).float() + 0.3 * torch.randn(NODES, WIDTH, generator=made)
    near = (block[:, None] == block) & (torch.rand(NODES, NODES, generator=made) < 0.3)
    return x, near.T.nonzero().T.flip(0).contiguous()


def pairs(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(sources, destinations of their block, destinations of other blocks)."""
    made = torch.Generator().manual_seed(seed)
    src = torch.randint(NODES, (count,), generator=made)
    dst = (src + BLOCKS * torch.randint(1, NODES // BLOCKS, (count,), generator=made)) % NODES
    other = src + 1 + BLOCKS * torch.randint(NODES // BLOCKS, (count,), generator=made)
    return src, dst, other % NODES


def fields(form: str, src: Tensor, dst: Tensor, other: Tensor) -> dict[str, Tensor]:
    if form == "binary":
        index = torch.stack([torch.cat([src, src]), torch.cat([dst, other])])
        return {"edge_label_index": index, "edge_label": (torch.arange(2 * len(src)) < len(src)).float()}
    triplet = {"src_index": src, "dst_pos_index": dst}
    if form == "one":
        return triplet | {"dst_neg_index": other}
    if form == "several":
        return triplet | {"dst_neg_index": torch.stack([other, (other + BLOCKS) % NODES], dim=1)}
    if form == "shared":
        nodes = torch.arange(6)
        return triplet | {"dst_neg_index": nodes, "neg_mask": (src[:, None] - nodes) % BLOCKS != 0}
    return triplet | {"neg_mask": (src[:, None] - dst) % BLOCKS != 0}  # in_batch


FORMS = ("binary", "one", "several", "shared", "in_batch")


def batch_of(form: str, count: int = 40, seed: int = 1) -> Data:
    x, edges = graph()
    sampled = {"num_sampled_nodes": [NODES, 0, 0], "num_sampled_edges": [edges.size(1), 0]}
    return Data(
        x=x,
        edge_index=edges,
        n_id=torch.arange(NODES),
        input_id=torch.arange(count),
        **sampled,
        **fields(form, *pairs(count, seed)),
    )


def hetero_batch(form: str, count: int = 40, seed: int = 1) -> HeteroData:
    x, edges = graph()
    batch = HeteroData({"user": {"x": x}, "item": {"x": x[:, :5]}})
    for node_type in ("user", "item"):
        batch[node_type].num_sampled_nodes = [NODES, 0, 0]
    for edge_type in (USERS, ITEMS):
        batch[edge_type].edge_index, batch[edge_type].num_sampled_edges = edges, [edges.size(1), 0]
    for name, value in fields(form, *pairs(count, seed)).items():
        store: Any = (
            batch[USERS] if name.startswith(("edge", "neg")) else batch["user" if name == "src_index" else "item"]
        )
        store[name] = value
    return batch


def model_of(hetero: bool = False, **options: Any) -> LinkPredictor:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_channels": 16, "num_layers": 2, "lr": 0.02}
    if hetero:
        metadata = (["item", "user"], [ITEMS, USERS])
        shape |= {"metadata": metadata, "num_nodes": {"user": NODES, "item": NODES}, "edge_type": "__".join(USERS)}
    return LinkPredictor({"user": WIDTH, "item": 5} if hetero else WIDTH, **shape | options)


def train(model: LinkPredictor, batch: Any, steps: int = 40) -> LinkScores:
    optimizer: Any = model.configure_optimizers()
    for _ in range(steps):
        optimizer.zero_grad()
        loss, _ = LOSSES[model.loss](model(batch))
        loss.backward()
        optimizer.step()
    return model.eval()(batch)


def ahead(scores: LinkScores) -> float:
    """The share of comparisons that an edge wins: with its own negatives, or with all."""
    won = scores.positive[:, None] > scores.negative
    return float(won[scores.mask].float().mean() if scores.mask is not None else won.float().mean())


@pytest.mark.diagonal
@pytest.mark.parametrize("hetero", [False, True])
@pytest.mark.parametrize(
    ("form", "loss", "decoder"),
    [
        ("binary", "bce", "dot"),
        ("one", "bce", "mlp"),
        ("several", "bpr", "bilinear"),
        ("shared", "softmax", "dot"),
        ("in_batch", "softmax", "mlp"),
        ("in_batch", "bpr", "dot"),
    ],
)
def test_every_form_is_learned_and_holds_for_other_edges(hetero: bool, form: str, loss: str, decoder: str) -> None:
    make: Callable[..., Any] = hetero_batch if hetero else batch_of
    model = model_of(hetero, loss=loss, decoder=decoder)
    before = ahead(model.eval()(make(form, seed=2)))
    train(model.train(), make(form))
    assert ahead(model(make(form, seed=2))) > max(0.95, before)
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert not unused  # DDP wants a gradient of each


@pytest.mark.parametrize("decoder", ["dot", "bilinear", "mlp"])
def test_scores_are_those_of_each_pair(decoder: str) -> None:
    torch.manual_seed(0)
    score, z = make_decoder(decoder, 4, 0.0).eval(), torch.randn(NODES, 4)
    src, dst, other = pairs(7, 0)

    def each(u: Tensor, v: Tensor) -> Tensor:
        return torch.stack([score(z[a], z[b]) for a, b in zip(u.tolist(), v.tolist(), strict=True)])

    for form in FORMS:
        batch = Data(**fields(form, src, dst, other))
        found = score_links(batch, None, z, z, score)
        torch.testing.assert_close(found.positive, each(src, dst))
        if form == "binary":
            torch.testing.assert_close(found.negative, each(src, other))
            continue
        index = batch.dst_neg_index if "dst_neg_index" in batch else dst
        shared = form in ("shared", "in_batch")
        rows = index.expand(7, -1) if shared else index.view(7, -1)
        want = torch.stack([each(u.expand(len(row)), row) for u, row in zip(src, rows, strict=True)])
        torch.testing.assert_close(found.negative, want)
        assert (found.mask is not None) == shared


def test_losses_are_torchs() -> None:
    torch.manual_seed(0)
    positive, negative, mask = torch.randn(5), torch.randn(5, 3), torch.rand(5, 3) < 0.6
    scores = LinkScores(positive, negative, mask)
    labels = torch.cat([torch.ones(5), torch.zeros(int(mask.sum()))])
    logits = torch.cat([positive, negative[mask]])
    assert LOSSES["bce"](scores)[1] == len(logits)
    torch.testing.assert_close(LOSSES["bce"](scores)[0], functional.binary_cross_entropy_with_logits(logits, labels))
    ahead = -functional.logsigmoid((positive[:, None] - negative)[mask])
    torch.testing.assert_close(LOSSES["bpr"](scores), (ahead.mean(), int(mask.sum())))
    rows = torch.cat([positive[:, None], negative.masked_fill(~mask, -torch.inf)], dim=1)
    entropy = functional.cross_entropy(rows, torch.zeros(5, dtype=torch.long))
    torch.testing.assert_close(LOSSES["softmax"](scores)[0], entropy)
    half = LinkScores(torch.full((400,), 1000.0).half(), torch.full((400,), 1000.0).half())
    assert LOSSES["bce"](half)[0].isfinite()


class _Fixed(LinkPredictor):
    """Scores that are given."""

    def forward(self, batch: Any) -> LinkScores:
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch


def evaluate(batches: list[LinkScores], metrics: list[str], **options: Any) -> dict[str, float]:
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    loader: DataLoader = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    return dict(trainer.validate(_Fixed(WIDTH, metrics=metrics, **options), loader, verbose=False)[0])


def test_metrics_are_of_all_batches() -> None:
    """Unequal batches, one without edges, and scores so great that a sigmoid of them is 1."""
    torch.manual_seed(0)
    sizes = ((6, 9), (0, 4), (3, 0), (5, 2))
    batches = [LinkScores(40 + 9 * torch.randn(p), 38 + 9 * torch.randn(n)) for p, n in sizes]
    found = evaluate(batches, ["auc", "ap", "hits@2"])
    positive, negative = (torch.cat([getattr(b, name) for b in batches]) for name in ("positive", "negative"))
    order = (positive[:, None] > negative).double() + 0.5 * (positive[:, None] == negative)
    assert found["val_auc"] == pytest.approx(float(order.mean()), abs=1e-6)
    hits = HitsAtK(2)
    hits.update(positive, negative)
    assert found["val_hits@2"] == pytest.approx(float(hits.compute()))
    assert found["val_loss"] == pytest.approx(float(LOSSES["bce"](LinkScores(positive, negative))[0]), rel=1e-5)


def test_mrr_ranks_among_own_negatives() -> None:
    negative = torch.tensor([[0.1, 0.2, 0.3], [0.7, 0.5, 0.1]])
    batches = [LinkScores(torch.tensor([0.9, 0.5]), negative, torch.tensor([[True] * 3, [False, True, True]]))]
    assert evaluate(batches, ["mrr"], loss="softmax")["val_mrr"] == pytest.approx((1 + 1 / 1.5) / 2)
    flat = [LinkScores(torch.ones(2), torch.zeros(2))]
    with pytest.raises(DataError, match="mrr compares each edge with negatives of its own, but the batch has pairs"):
        evaluate(flat, ["mrr"])
    assert "val_loss" not in evaluate(flat, ["auc"], loss="softmax")
    with pytest.raises(DataError, match="loss: bpr compares each edge"):
        LOSSES["bpr"](flat[0])


def test_fit_and_checkpoint_monitor() -> None:
    model = model_of(metrics=["hits@3", "auc"], val_metric="val_auc")
    assert model.checkpoint_monitor == ("val_auc", "max")
    batches: Any = [batch_of("binary", seed=s) for s in (1, 2, 3)]
    trainer = Trainer(
        max_epochs=15, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    trainer.fit(model, DataLoader(batches, batch_size=None), DataLoader(batches[:1], batch_size=None))
    logged = trainer.callback_metrics
    assert {"train_loss", "val_loss", "val_hits@3", "val_auc"} <= set(logged)
    assert logged["val_auc"] > 0.95
    (first,) = trainer.predict(model, DataLoader(batches[:1], batch_size=None))  # type: ignore[misc]
    src, dst, _ = pairs(40, 1)
    assert (first["n_id"].tolist(), first["destination"].tolist()) == (src.tolist(), dst.tolist())
    torch.testing.assert_close(first["score"], model.eval()(batches[0]).positive)


@pytest.mark.parametrize("hetero", [False, True])
def test_a_rank_without_a_share_has_no_scores(hetero: bool) -> None:
    batch: Any = hetero_batch("binary", 0) if hetero else batch_of("binary", 0)
    for store in (batch["user"], batch["item"]) if hetero else (batch,):
        store.num_sampled_nodes, store.x = [0, 0, 0], store.x[:0]
    scores = model_of(hetero)(batch)
    assert (len(scores), scores.negative.shape) == (0, (0,))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"metrics": ["hits@0"]},
            r"metrics: expected any of auc, ap, mrr and hits@K \(such as hits@50\); got 'hits@0'",
        ),
        ({"val_metric": "val_mrr"}, "val_metric: expected one of val_auc, val_loss; got 'val_mrr'"),
        ({"decoder": "cosine"}, "decoder: expected .*dot.*bilinear.*mlp.*; got 'cosine'"),
        ({"loss": "hinge"}, "loss: expected .*bce.*; got 'hinge'"),
        ({"encoder": "SAG"}, "encoder: expected one of"),
        (
            {"hetero": True, "edge_type": None},
            "edge_type: expected the edge type to predict, one of item__rev_buys__user, ",
        ),
        ({"hetero": True, "edge_type": "user__buys__shop"}, "got 'user__buys__shop'"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        model_of(**options)


def test_batches_that_are_of_nodes_or_without_labels() -> None:
    batch = batch_of("binary")
    del batch.edge_label
    with pytest.raises(DataError, match=r"edges without labels and without negatives. Set neg_sampling"):
        model_of()(batch)
    del batch.edge_label_index
    with pytest.raises(DataError, match="neither edge_label_index with labels nor triplets"):
        model_of()(batch)
    batch.edge_label_index, batch.edge_label = torch.zeros(2, 3, dtype=torch.long), torch.zeros(3, 2)
    with pytest.raises(
        DataError, match=r"edge_label: expected one label for each edge, 0 where there is none; got \[3, 2\]"
    ):
        model_of()(batch)
