"""`LinkPredictor`: a ready LightningModule that predicts edges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

from glt_lightning.base import EdgeType, OptionError, edge_type_str, one_of
from glt_lightning.inference import Ranking
from glt_lightning.models.encoders import NO_ENCODER
from glt_lightning.models.gnn import Metadata
from glt_lightning.models.layerwise import ReadyLayers, rank_test_edges
from glt_lightning.models.link_scores import (
    LOSSES,
    OGBMRR,
    HitsAtK,
    LinkScores,
    edge_ends,
    make_decoder,
    mean_loss,
    relation_of,
    score_links,
    score_pairs,
    types_in,
)
from glt_lightning.models.predictor import Ends, Predictor, ends_of
from glt_lightning.models.tasks import monitor_of, only_checks, update_metric

if TYPE_CHECKING:
    from glt_lightning.inference import LayerwiseRun
    from glt_lightning.lightning import GLTDataModule

Corrupt = Literal["destination", "both"]
_HITS = re.compile(r"hits@([1-9]\d*)")


class LinkPredictor(Predictor):
    """Predicts edges: a GNN of PyG embeds the two ends of each, a decoder scores the pair. Trained by Adam.

    It takes batches of edges with PyG's fields: ``edge_label_index`` and ``edge_label``, or triplets ``src_index``,
    ``dst_pos_index`` and ``dst_neg_index``. Logs ``train_loss``, ``val_loss`` and each metric for validation and test
    (``val_auc``, ``test_auc``), exact over ranks. On the command line the arguments that describe the graph come from the data
    module.

    Args:
        in_channels: Width of ``x``; per node type in a heterogeneous graph. ``None`` for nodes without features, which
            get a learned embedding.
        encoder: Name of the GNN, as in `NodePredictor`; or ``none``, for models of knowledge graphs: the decoder scores the
            learned embeddings of nodes themselves, of nodes with features a linear layer of these.
        encoder_kwargs: Further arguments of PyG's class, such as ``{heads: 4}`` for GAT or HGT.
        decoder: ``dot``, ``bilinear`` or ``mlp``; or, of knowledge graphs, ``distmult``, ``complex``, ``transe`` or ``rotate``,
            with learned numbers for each edge type. All but ``dot`` and ``distmult`` tell the directions of an edge apart.
        loss: ``bce``: each pair is an edge or is none; ``bpr``: an edge scores above each of its negatives; ``softmax``: an
            edge is chosen among its negatives. The last two need triplets (``data.links.neg_sampling: {mode: triplet}``), and
            log ``val_loss`` where validation has them, too.
        corrupt: Which end of an edge its triplets' negatives replace: ``destination``, or ``both``: the drawn nodes are scored as
            sources, too, so that both ends are learned to be told. Needs edges between nodes of one type.
        hidden_channels: Width of the layers and of the embeddings.
        num_layers: Number of message-passing layers; best equal to the number of fan-outs.
        dropout: Probability of dropping a hidden value while training.
        lr: Learning rate.
        weight_decay: Weight decay.
        metrics: Metrics that are logged besides the loss: any of auc, ap, mrr (with ties counted as OGB does; needs triplets) and
            hits@K, such as ``hits@50``. ``None``: auc.
        ranking: Metrics of the test edges, ranked among all destinations without the edges of training: NAME@K, such as
            ``mrr@10``, as in `rank_links`; or ``filtered_mrr`` and ``filtered_hits@K``: both ends of each edge are ranked,
            without the edges of all splits. Logged as ``test_rank_mrr@10``. Needs ``data.evaluation.mode: layerwise``.
        val_metric: Metric that chooses the best checkpoint, such as ``val_mrr`` or ``val_loss``. ``None``: the first.
        edge_type: Edge type of the edges, as ``src__rel__dst``; needed in a heterogeneous graph. Several are a list: each gets a
            decoder of its own, the loss is the mean over the pairs of all types, and each metric is logged over all of them
            and, as ``val_auc/src__rel__dst``, for each.
        num_relations: Number of relations of the edges of one type (``data.links.relation``), for each of which the decoder has
            learned numbers. ``None``: edge types are the relations.
        metadata: Node and edge types of a heterogeneous graph.
        num_nodes: Number of nodes, per node type in a heterogeneous graph; needed where nodes have no features.
        num_categories: Number of codes of each column of ``x_codes``, per node type in a heterogeneous graph.
        node_embedding: Kind of the learned embeddings of nodes without features. ``dense``: a parameter on every rank, all of it
            updated in each step. ``sparse``: rows of a `DistEmbedding`, which the ranks of the host share, trained by
            `SparseAdam` with ``lr``.
        edge_facts: Description of what edges have: ``edge_facts`` of the data module. ``None``: layers read nothing of edges.
        edge_features: Edge attributes that the layers read, any of ``edge_attr`` (with ``edge_codes``) and ``edge_weight``.
            ``None``: all that there are and that they can read; the log names those that they cannot.

    Raises:
        OptionError: For an encoder, decoder, loss or metric that is unknown or does not fit the graph.

    Example:
        >>> model = LinkPredictor(3, hidden_channels=8, num_layers=1, metrics=["auc", "hits@2"], val_metric="val_hits@2")
        >>> from torch_geometric.data import Data
        >>> batch = Data(x=torch.ones(3, 3), edge_index=torch.tensor([[2], [0]]), num_sampled_nodes=[2, 1], num_sampled_edges=[1])
        >>> batch.edge_label_index, batch.edge_label = torch.tensor([[0, 1], [1, 1]]), torch.tensor([1.0, 0.0])
        >>> scores = model(batch)
        >>> scores.positive.shape, scores.negative.shape
        (torch.Size([1]), torch.Size([1]))
    """

    def __init__(
        self,
        in_channels: int | dict[str, int | None] | None,
        encoder: str = "GraphSAGE",
        encoder_kwargs: dict[str, Any] | None = None,
        decoder: str = "dot",
        loss: str = "bce",
        hidden_channels: int = 256,
        num_layers: int = 2,
        dropout: float = 0.0,
        lr: float = 0.003,
        weight_decay: float = 0.0,
        metrics: list[str] | None = None,
        val_metric: str | None = None,
        edge_type: str | list[str] | None = None,
        metadata: Metadata | None = None,
        num_nodes: int | dict[str, int] | None = None,
        num_categories: list[int] | dict[str, list[int]] | None = None,
        node_embedding: str = "dense",
        ranking: list[str] | None = None,
        edge_facts: dict[str, Any] | None = None,
        edge_features: list[str] | None = None,
        num_relations: int | None = None,
        corrupt: Corrupt = "destination",
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        given = locals()
        one_of("loss", loss, tuple(LOSSES))
        names = _metric_names(metrics)
        self.checkpoint_monitor = monitor_of(val_metric, names)
        self.edge_types: list[EdgeType | None] = [None] if metadata is None else _edge_types(edge_type, metadata)
        self.edge_type = self.edge_types[0]
        ends = None if metadata is None else tuple(t for each in self.edge_types for t in ends_of(each))
        self._make_encoder(given, ends)
        self.heads = Ends(self.edge_types, hidden_channels, plain=encoder == NO_ENCODER)
        self.num_relations, self.both_ends = num_relations, self._corrupts_both(corrupt)
        if len(self.edge_types) == 1:
            self.decoder = make_decoder(decoder, hidden_channels, dropout, num_relations)
        else:
            names += [f"{name}/{t}" for name in names for t in self.type_names]
            self.decoders = nn.ModuleDict({t: make_decoder(decoder, hidden_channels, dropout) for t in self.type_names})
        self.loss = loss
        self.val_metrics, self.test_metrics = _make_metrics(names), _make_metrics(names)
        several = [f"/{t}" for t in self.type_names] if len(self.edge_types) > 1 else []
        made = [(name, t) for name in ranking or [] for t in ["", *several]]
        made = [(name, t) for name, t in made if t or not several or name.startswith("filtered_")]
        self.test_ranking = nn.ModuleDict({f"{name}{t}": Ranking.metric(name) for name, t in made})

    def _corrupts_both(self, corrupt: str) -> bool:
        one_of("corrupt", corrupt, ("destination", "both"))
        for src, dst in (ends_of(each) for each in self.edge_types if corrupt == "both"):
            if src != dst:
                raise OptionError(
                    f"corrupt: both: negatives are drawn among nodes of type {dst!r}, and edges lead from nodes of type {src!r}. "
                    "Leave it out."
                )
        return corrupt == "both"

    @property
    def type_names(self) -> list[str]:
        """Names of the edge types, in the order in which predictions number them."""
        return [edge_type_str(each) for each in self.edge_types if each is not None]

    def embed(self, batch: Data | HeteroData) -> tuple[Tensor, Tensor]:
        """Returns embeddings [S, hidden_channels] of the seeds of the source and of the destination type; with several edge types
        those of the first."""
        found = self.heads.embed(self.encoder, batch)
        src, dst = ends_of(self.edge_type)
        return found[src], found[dst]

    def decoder_of(self, edge_type: EdgeType | None) -> Any:
        """Returns the decoder of an edge type."""
        return (
            self.decoder if edge_type is None or len(self.edge_types) == 1 else self.decoders[edge_type_str(edge_type)]
        )

    def forward(self, batch: Data | HeteroData) -> LinkScores | dict[str, LinkScores]:
        """Scores the edges of a batch and its negatives. Returns logits; with several edge types by type."""
        embedded, found = self.heads.embed(self.encoder, batch), {}
        for edge_type in types_in(batch, self.edge_types):
            name = "" if edge_type is None or len(self.edge_types) == 1 else edge_type_str(edge_type)
            src, dst = ends_of(edge_type)
            decoder = self.decoder_of(edge_type)
            found[name] = score_links(batch, edge_type, embedded[src], embedded[dst], decoder, self.both_ends)
        return found if len(self.edge_types) > 1 else found[""]

    def _scores(self, batch: Data | HeteroData) -> dict[str, LinkScores]:
        """Scores a batch. Returns the scores by edge type; a single type has the empty name."""
        scores = self(batch)
        return {"": scores} if isinstance(scores, LinkScores) else scores

    def pair_scores(self, edge_type: str | None = None, relation: int | None = None) -> tuple[Any, Any]:
        """Returns the scores of all pairs of embeddings, [P, D] and [K, D] -> [P, K], by an edge type where there are several,
        and by a relation where edges have some; and what maps embeddings of sources to rows whose inner products with
        destinations they are, None if nothing does."""
        numbers = {edge_type_str(each): each for each in self.edge_types if each is not None}
        decoder = self.decoder_of(numbers.get(edge_type or "", self.edge_type))
        scores, transformed = decoder.all_pairs, getattr(decoder, "transformed", None)
        if relation is None:
            return scores, transformed
        return partial(scores, relation=relation), transformed and partial(transformed, relation=relation)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        evaluation = getattr(getattr(self.trainer, "datamodule", None), "evaluation", None)  # of a data module of ours
        if stage != "predict" and len(self.test_ranking) and getattr(evaluation, "mode", None) != "layerwise":
            raise OptionError(
                "model.ranking: ranks among the embeddings of all nodes, which sampled evaluation does not have. Set "
                "data.evaluation.mode: layerwise, or leave out model.ranking."
            )

    def training_step(self, batch: Data | HeteroData, batch_idx: int) -> Tensor:
        scores = self._scores(batch)
        loss, _ = mean_loss(self.loss, scores.values())
        self.log("train_loss", loss, prog_bar=True, batch_size=_count(scores))
        return loss

    def validation_step(self, batch: Data | HeteroData, batch_idx: int) -> None:
        scores = self._scores(batch)
        if self.loss == "bce" or all(each.negative.dim() == 2 for each in scores.values()):
            loss, count = mean_loss(self.loss, scores.values())
            if count:
                self.val_loss(loss, count)
            self.log("val_loss", self.val_loss, prog_bar=True, batch_size=max(1, _count(scores)))
        self._log_metrics("val", self.val_metrics, scores)

    def test_step(self, batch: Data | HeteroData, batch_idx: int) -> None:
        self._log_metrics("test", self.test_metrics, self._scores(batch))

    def rank_test_edges(self, data: GLTDataModule, run: LayerwiseRun) -> None:
        """Ranks the edges of the test split at the end of a test whose outputs are computed layer by layer, and logs it."""
        if not len(self.test_ranking):
            return
        rank_test_edges(self, data, run)
        for name, metric in self.test_ranking.items():
            self.log(f"test_rank_{name}", metric)  # type: ignore[arg-type]

    def layerwise_layers(self) -> ReadyLayers:
        """The layers for layer-wise inference. edge_names: attributes of edges."""
        return self.heads.layers(self.encoder)

    def predict_step(self, batch: Data | HeteroData, batch_idx: int) -> dict[str, Tensor]:
        """Returns ``n_id`` and ``destination`` [S], the user's ids of both ends of each edge, and its ``score`` [S]; with several
        edge types also ``edge_type`` [S], positions in ``type_names``; with relations ``rel_type`` [S]."""
        embedded, found = self.heads.embed(self.encoder, batch), []
        for edge_type in types_in(batch, self.edge_types):
            src, dst = edge_ends(batch, edge_type)
            source, destination = (embedded[t] for t in ends_of(edge_type))
            ends = (batch, batch) if edge_type is None else (batch[edge_type[0]], batch[edge_type[2]])
            score = score_pairs(batch, edge_type, source[src], destination[dst], self.decoder_of(edge_type))
            rows = {"n_id": ends[0].n_id[src], "destination": ends[1].n_id[dst], "score": score}
            if self.num_relations is not None:
                rows["rel_type"] = relation_of(batch, edge_type).clone()
            several = (
                {}
                if len(self.edge_types) == 1
                else {"edge_type": torch.full_like(rows["n_id"], self.edge_types.index(edge_type))}
            )
            found.append(rows | several)
        return {name: torch.cat([rows[name] for rows in found]) for name in found[0]}

    def _log_metrics(self, stage: str, metrics: nn.ModuleDict, scores: dict[str, LinkScores]) -> None:
        for name, module in metrics.items():
            metric: Any = module
            kind, _, edge_type = name.partition("/")
            own = [each for t, each in scores.items() if edge_type in ("", t)]
            for each in own:
                _update(metric, kind, each)
            if only_checks(self):
                metric.reset()
            elif own:  # a split may lack a type, on all ranks
                self.log(f"{stage}_{name}", metric, prog_bar=not edge_type, batch_size=max(1, _count(scores)))


def _count(scores: dict[str, LinkScores]) -> int:
    return sum(len(each) for each in scores.values())


def _update(metric: Any, name: str, scores: LinkScores) -> None:
    if name == "mrr":
        metric.update(scores.positive, scores.own_negative("mrr"))
    elif _HITS.fullmatch(name):
        metric.update(scores.positive, scores.flat_negative)
    else:
        _update_curve(metric, scores)


def _update_curve(metric: Any, scores: LinkScores) -> None:
    """Updates AUC or average precision, which depend only on the order of scores.

    Scores are mapped to (0, 1) in float64. Otherwise torchmetrics takes a sigmoid of them, only in batches that have a score
    outside [0, 1], and in float32, where all great scores become 1.
    """
    both = torch.cat([scores.positive, scores.flat_negative]).detach().double()
    targets = torch.zeros(len(both), dtype=torch.long, device=both.device)
    targets[: len(scores)] = 1
    update_metric(metric, 0.5 + 0.5 * both / (1 + both.abs()), targets)


class _OrNaN:
    """Makes a metric NaN without pairs, for which torchmetrics raises: a sanity check may see the edges of one type alone."""

    preds: Any

    def compute(self) -> Tensor:
        count = self.preds.numel() if isinstance(self.preds, Tensor) else sum(len(each) for each in self.preds)
        found: Tensor = super().compute() if count else torch.tensor(torch.nan)  # type: ignore[misc]  # of the metric
        return found


class _AreaUnderCurve(_OrNaN, BinaryAUROC):  # type: ignore[misc]
    pass


class _MeanPrecision(_OrNaN, BinaryAveragePrecision):  # type: ignore[misc]
    pass


def _metric_names(given: Sequence[str] | None) -> list[str]:
    names = ["auc"] if given is None else [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in ("auc", "ap", "mrr") and not _HITS.fullmatch(str(name)):
            raise OptionError(f"metrics: expected any of auc, ap, mrr and hits@K (such as hits@50); got {name!r}.")
    return list(dict.fromkeys(names))


def _make_metrics(names: Sequence[str]) -> nn.ModuleDict:
    return nn.ModuleDict({name: _make_metric(name) for name in names})


def _make_metric(name: str) -> nn.Module:
    name, _, _ = name.partition("/")
    if (hits := _HITS.fullmatch(name)) is not None:
        return HitsAtK(int(hits[1]))
    return OGBMRR() if name == "mrr" else _AreaUnderCurve() if name == "auc" else _MeanPrecision()


def _edge_types(given: str | list[str] | None, metadata: Metadata) -> list[EdgeType | None]:
    """Parses edge types. Raises `OptionError` for one whose node types the graph does not have."""
    found: list[EdgeType | None] = []
    for name in given if isinstance(given, (list, tuple)) else [given]:
        parts = tuple(str(name).split("__"))
        if name is None or len(parts) != 3 or not {parts[0], parts[2]} <= set(metadata[0]):
            known = ", ".join("__".join(e) for e in metadata[1])
            raise OptionError(f"edge_type: expected the edge type to predict, one of {known}; got {name!r}.")
        found.append((parts[0], parts[1], parts[2]))
    if not found or len(set(found)) < len(found):
        raise OptionError(f"edge_type: expected different edge types to predict, got {given!r:.200}.")
    return found
