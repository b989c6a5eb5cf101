"""`EdgePredictor`: a ready LightningModule that predicts classes, labels or numbers of edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torchmetrics import MeanMetric

from glt_lightning.base import DataError, EdgeType, OptionError, edge_type_str, one_of
from glt_lightning.lightning import GLTDataModule
from glt_lightning.models.code_embedding import CodeEmbedding
from glt_lightning.models.encoders import EncoderShape, make_encoder
from glt_lightning.models.fits import require_same_inputs
from glt_lightning.models.gnn import Metadata, num_seeds
from glt_lightning.models.layerwise import ReadyLayers
from glt_lightning.models.row_embeddings import adam_of, check_node_embedding
from glt_lightning.models.tasks import (
    make_task,
    make_task_metrics,
    metric_names,
    monitor_of,
    no_loss,
    only_checks,
    update_metric,
)


class EdgePredictor(LightningModule):
    """Predicts classes, labels or numbers of the edges of one type: a GNN of PyG embeds both ends, a decoder reads them and,
    where the data gives them, the edge's own attributes. Trained by Adam.

    It takes batches of ``task: edge`` with ``edge_label_index`` and ``edge_label``. Logs ``train_loss``, ``val_loss`` and each
    metric for validation and test, exact over ranks. On the command line the arguments that describe the graph and its labels
    come from the data module.

    Args:
        in_channels: Width of ``x``; per node type in a heterogeneous graph. ``None`` for nodes without features, which
            get a learned embedding.
        label_facts: Description of the labels: ``label_facts`` of the data module.
        task: ``multiclass``, ``binary``, ``multilabel``, ``regression``, or ``ordinal`` for classes that have an order, such as
            stars. ``None``: the one that the labels suggest.
        encoder: Name of the GNN, as in `NodePredictor`.
        encoder_kwargs: Further arguments of PyG's class, such as ``{heads: 4}`` for GAT or HGT.
        decoder: ``mlp``: two layers over both embeddings, their product and the edge's attributes. ``linear``: one layer.
        hidden_channels: Width of the layers and of the embeddings.
        num_layers: Number of message-passing layers; best equal to the number of fan-outs.
        dropout: Probability of dropping a hidden value while training.
        lr: Learning rate.
        weight_decay: Weight decay.
        class_weights: Weights of the classes in the loss, as in `NodePredictor`.
        metrics: Metrics that are logged besides the loss, as in `NodePredictor`; for ordinal labels also mae and qwk, the
            quadratic weighted kappa. ``None``: those that suit the task.
        val_metric: Metric that chooses the best checkpoint, such as ``val_auc`` or ``val_loss``. ``None``: the first.
        edge_type: Edge type of the edges, as ``src__rel__dst``; needed in a heterogeneous graph.
        target_facts: Description of the attributes of the edges to predict that the decoder reads: ``target_facts`` of the data
            module. ``None``: it reads none.
        metadata: Node and edge types of a heterogeneous graph.
        num_nodes: Number of nodes, per node type in a heterogeneous graph; needed where nodes have no features.
        num_categories: Number of codes of each column of ``x_codes``, per node type in a heterogeneous graph.
        node_embedding: Kind of the learned embeddings of nodes without features, ``dense`` or ``sparse``, as in `NodePredictor`.
        edge_facts: Description of what edges have, which the encoder reads: ``edge_facts`` of the data module.
        edge_features: Edge attributes that the encoder reads, as in `NodePredictor`.

    Raises:
        OptionError, DataError: For a task, encoder, decoder or metric that is unknown, or does not fit the labels or the graph.

    Example:
        >>> facts = {"kind": "float", "width": None, "num_classes": None, "class_names": None}
        >>> model = EdgePredictor(3, facts, hidden_channels=8, num_layers=1)
        >>> from torch_geometric.data import Data
        >>> batch = Data(x=torch.ones(3, 3), edge_index=torch.tensor([[2], [0]]), num_sampled_nodes=[2, 1], num_sampled_edges=[1])
        >>> batch.edge_label_index = torch.tensor([[0, 1], [1, 1]])
        >>> model(batch).shape
        torch.Size([2, 1])
    """

    def __init__(
        self,
        in_channels: int | dict[str, int | None] | None,
        label_facts: dict[str, Any] | None,
        task: str | None = None,
        encoder: str = "GraphSAGE",
        encoder_kwargs: dict[str, Any] | None = None,
        decoder: str = "mlp",
        hidden_channels: int = 128,
        num_layers: int = 2,
        dropout: float = 0.0,
        lr: float = 0.003,
        weight_decay: float = 0.0,
        class_weights: str | list[float] | dict[str, float] | None = None,
        metrics: list[str] | None = None,
        val_metric: str | None = None,
        edge_type: str | None = None,
        target_facts: dict[str, Any] | None = None,
        metadata: Metadata | None = None,
        num_nodes: int | dict[str, int] | None = None,
        num_categories: list[int] | dict[str, list[int]] | None = None,
        node_embedding: str = "dense",
        edge_facts: dict[str, Any] | None = None,
        edge_features: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if label_facts is None:
            raise DataError(
                "EdgePredictor: no labels of edges are known. Set data.task: edge, and name their labels: the column label of "
                "their table, or data.links.label."
            )
        self.task = make_task(task, label_facts, class_weights)
        names = metric_names(self.task.name, metrics)
        self.checkpoint_monitor = monitor_of(val_metric, names)
        self.edge_type = None if metadata is None else _one_type(edge_type, metadata)
        ends = None if self.edge_type is None else (self.edge_type[0], self.edge_type[2])
        shape = EncoderShape(
            in_channels=in_channels,
            hidden_channels=hidden_channels,
            num_layers=num_layers,
            dropout=dropout,
            metadata=metadata,
            num_nodes=num_nodes,
            target_type=ends,
            num_categories=num_categories,
            node_embedding=node_embedding,
            edge_facts=edge_facts,
            edge_features=edge_features,
        )
        self.encoder: Any = make_encoder(encoder, encoder_kwargs or {}, shape)
        check_node_embedding(self, node_embedding)
        # Encoders end in a ReLU; a product of embeddings that are not negative would never be.
        self.heads = nn.ModuleDict(
            {t: nn.Linear(hidden_channels, hidden_channels) for t in sorted({*(ends or ["node"])})}
        )
        self.decoder = EdgeDecoder(decoder, hidden_channels, self.task.out_channels, dropout, target_facts)
        self.in_channels, self.num_categories, self.edge_facts = in_channels, num_categories, edge_facts
        self.label_facts, self.target_facts = label_facts, target_facts
        self.hidden_channels, self.lr, self.weight_decay = hidden_channels, lr, weight_decay
        self.val_loss = MeanMetric()  # exact over ranks with unequal batches
        self.val_metrics, self.test_metrics = (make_task_metrics(self.task, names) for _ in range(2))

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, or of the labels of a multi-label task."""
        return None if self.label_facts is None else self.label_facts["class_names"]

    def embed(self, batch: Data | HeteroData) -> tuple[Tensor, Tensor]:
        """Returns embeddings [S, hidden_channels] of the seeds of the source and of the destination type."""
        if self.edge_type is None:
            found = {"node": self.encoder(batch) if num_seeds(batch) else self._none()}
        elif any(num_seeds(batch[t]) for t in self.heads):
            found = self.encoder.embed(batch)
        else:
            found = dict.fromkeys(self.heads, self._none())
        of = {t: head(found[t]) for t, head in self.heads.items()}
        src, dst = ("node", "node") if self.edge_type is None else (self.edge_type[0], self.edge_type[2])
        return of[src], of[dst]

    def forward(self, batch: Data | HeteroData) -> Tensor:
        """Returns outputs [P, out_channels] for the P edges to predict of a batch: logits, or numbers."""
        source, destination = self.embed(batch)
        src, dst = self._edge_store(batch).edge_label_index
        found: Tensor = self.decoder(source[src], destination[dst], self._edge_store(batch))
        return found

    def setup(self, stage: str) -> None:
        require_same_inputs(self.trainer, self.in_channels, self.num_categories, self.edge_facts)
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, GLTDataModule):
            if stage == "fit" and self.task.needs_labels:
                raise OptionError("task: the values of labels are read from a GLTDataModule, and the run has none.")
            return
        if data.links is None or not data.links.labelled:
            raise OptionError("EdgePredictor predicts labels of edges. Set data.task: edge.")
        if self.target_facts != data.target_facts:
            raise DataError(
                f"the model was built for target_facts {self.target_facts}, but the graph has {data.target_facts}. Set "
                "data.links.with_target_attrs as in training."
            )
        if stage == "fit":
            rank_zero_info(
                f"task: {self.task.name}; the best checkpoint is that of {' '.join(self.checkpoint_monitor)}."
            )
            if self.task.needs_labels:
                self.task.learn(torch.as_tensor(data.train_labels()))

    def training_step(self, batch: Data | HeteroData, batch_idx: int) -> Tensor:
        out, y = self._labelled(batch)
        loss = self.task.loss(out, y)[0] if len(y) else no_loss(self.task, out)
        self.log("train_loss", loss, prog_bar=True, batch_size=max(1, len(y)))
        return loss

    def validation_step(self, batch: Data | HeteroData, batch_idx: int) -> None:
        out, y = self._labelled(batch)
        if len(y):
            self.val_loss(*self.task.loss(out, y))
        self.log("val_loss", self.val_loss, prog_bar=True, batch_size=max(1, len(y)))
        self._log_metrics("val", self.val_metrics, out, y)

    def test_step(self, batch: Data | HeteroData, batch_idx: int) -> None:
        self._log_metrics("test", self.test_metrics, *self._labelled(batch))

    def predict_step(self, batch: Data | HeteroData, batch_idx: int) -> dict[str, Tensor]:
        """Returns ``n_id`` and ``destination`` [P], the user's ids of both ends of each edge; ``input_id`` [P], its position in
        what is predicted; ``pred`` [P] or [P, D]; and ``probability`` of classes."""
        src, dst = self._edge_store(batch).edge_label_index
        ends = (batch, batch) if self.edge_type is None else (batch[self.edge_type[0]], batch[self.edge_type[2]])
        rows = {"n_id": ends[0].n_id[src], "destination": ends[1].n_id[dst]}
        return {**rows, "input_id": self._edge_store(batch).input_id.clone(), **self.task.predict(self(batch))}

    def layerwise_layers(self, edge_names: Sequence[str]) -> ReadyLayers:
        """The layers for layer-wise inference. edge_names: attributes of edges."""
        return ReadyLayers(self.encoder, edge_names, lambda out, node_type: {"embedding": self.heads[node_type](out)})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adam_of(self, self.lr, self.weight_decay)

    def _none(self) -> Tensor:
        """Returns embeddings [0, hidden_channels], for a rank without a share of a small evaluation split."""
        return next(self.heads.parameters()).new_empty(0, self.hidden_channels)

    def _edge_store(self, batch: Data | HeteroData) -> Any:
        return batch if self.edge_type is None else batch[self.edge_type]

    def _labelled(self, batch: Data | HeteroData) -> tuple[Tensor, Tensor]:
        """Returns the outputs and the labels of the edges that have a label."""
        out, store = self(batch), self._edge_store(batch)
        if "edge_label" not in store:
            raise DataError("the edges of the batch have no edge_label. Set data.task: edge.")
        y = store.edge_label
        labelled = self.task.labelled(y)
        return (out, y) if bool(labelled.all()) else (out[labelled], y[labelled])

    def _log_metrics(self, stage: str, metrics: nn.ModuleDict, out: Tensor, y: Tensor) -> None:
        scores, targets = self.task.scores(out, y)
        for name, module in metrics.items():
            metric: Any = module
            update_metric(metric, scores, targets)
            if only_checks(self):
                metric.reset()
            else:
                self.log(f"{stage}_{name}", metric, prog_bar=True, batch_size=max(1, len(y)))


class EdgeDecoder(nn.Module):
    """Maps the embeddings of both ends of edges, and the edges' own attributes, to outputs [P, out_channels].

    facts: what edges have, as ``edge_facts``; None: nothing.
    """

    def __init__(
        self, kind: str, width: int, out_channels: int, dropout: float, facts: Mapping[str, Any] | None
    ) -> None:
        super().__init__()
        one_of("decoder", kind, ("mlp", "linear"))
        self.columns = (facts or {}).get("width")
        codes = (facts or {}).get("num_categories")
        self.codes = CodeEmbedding(codes, width, "edge_label_codes") if codes else None
        inputs = 3 * width + (self.columns or 0) + (width if codes else 0)
        layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, out_channels)]
        self.layers = nn.Sequential(*layers) if kind == "mlp" else nn.Linear(inputs, out_channels)

    def forward(self, source: Tensor, destination: Tensor, store: Any) -> Tensor:
        """source, destination: [P, width].  store: has ``edge_label_attr`` and ``edge_label_codes`` of the edges."""
        parts = [source, destination, source * destination]
        if self.columns:
            attr = store.get("edge_label_attr")
            if attr is None or tuple(attr.shape[1:]) != (self.columns,):
                found = "has none" if attr is None else f"has {list(attr.shape)}"
                raise DataError(
                    f"edge_label_attr: the model was built for {self.columns} columns, and the batch {found}. Give the edges to "
                    "predict their attributes, with data.links.with_target_attrs as in training."
                )
            parts.append(attr.to(source.dtype))
        if self.codes is not None:
            parts.append(self.codes("to predict", store))
        found_: Tensor = self.layers(torch.cat(parts, dim=1))
        return found_


def _one_type(given: str | None, metadata: Metadata) -> EdgeType:
    known = {edge_type_str(e): e for e in ((src, rel, dst) for src, rel, dst in metadata[1])}
    if given not in known:
        raise OptionError(f"edge_type: expected the edge type to predict, one of {', '.join(known)}; got {given!r}.")
    return known[str(given)]
