"""`EdgePredictor`: a ready LightningModule that predicts classes, labels or numbers of edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import DataError, EdgeType, OptionError, edge_type_str, one_of
from glt_lightning.lightning import GLTDataModule
from glt_lightning.models.code_embedding import CodeEmbedding
from glt_lightning.models.encoders import NO_ENCODER
from glt_lightning.models.gnn import Metadata
from glt_lightning.models.layerwise import ReadyLayers
from glt_lightning.models.predictor import Ends, LabelPredictor, ends_of


class EdgePredictor(LabelPredictor):
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
        given = locals()
        self._make_task(given)
        self.edge_type = None if metadata is None else _one_type(edge_type, metadata)
        self._make_encoder(given, None if self.edge_type is None else ends_of(self.edge_type))
        self.heads = Ends([self.edge_type], hidden_channels, plain=encoder == NO_ENCODER)
        self.decoder = EdgeDecoder(decoder, hidden_channels, self.task.out_channels, dropout, target_facts)
        self.target_facts = target_facts

    def embed(self, batch: Data | HeteroData) -> tuple[Tensor, Tensor]:
        """Returns embeddings [S, hidden_channels] of the seeds of the source and of the destination type."""
        found = self.heads.embed(self.encoder, batch)
        src, dst = ends_of(self.edge_type)
        return found[src], found[dst]

    def forward(self, batch: Data | HeteroData) -> Tensor:
        """Returns outputs [P, out_channels] for the P edges to predict of a batch: logits, or numbers."""
        source, destination = self.embed(batch)
        src, dst = self._edge_store(batch).edge_label_index
        found: Tensor = self.decoder(source[src], destination[dst], self._edge_store(batch))
        return found

    def setup(self, stage: str) -> None:
        super().setup(stage)
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, GLTDataModule):
            if data.links is None or not data.links.labelled:
                raise OptionError("EdgePredictor predicts labels of edges. Set data.task: edge.")
            if self.target_facts != data.target_facts:
                raise DataError(
                    f"the model was built for target_facts {self.target_facts}, but the graph has {data.target_facts}. Set "
                    "data.links.with_target_attrs as in training."
                )
        self._learn(stage)

    def predict_step(self, batch: Data | HeteroData, batch_idx: int) -> dict[str, Tensor]:
        """Returns ``n_id`` and ``destination`` [P], the user's ids of both ends of each edge; ``input_id`` [P], its position in
        what is predicted; ``pred`` [P] or [P, D]; and ``probability`` of classes."""
        src, dst = self._edge_store(batch).edge_label_index
        ends = (batch, batch) if self.edge_type is None else (batch[self.edge_type[0]], batch[self.edge_type[2]])
        rows = {"n_id": ends[0].n_id[src], "destination": ends[1].n_id[dst]}
        return {**rows, "input_id": self._edge_store(batch).input_id.clone(), **self.task.predict(self(batch))}

    def layerwise_layers(self) -> ReadyLayers:
        """The layers for layer-wise inference. edge_names: attributes of edges."""
        return self.heads.layers(self.encoder)

    def _edge_store(self, batch: Data | HeteroData) -> Any:
        return batch if self.edge_type is None else batch[self.edge_type]

    def _labels(self, batch: Data | HeteroData) -> Tensor:
        store = self._edge_store(batch)
        if "edge_label" not in store:
            raise DataError("the edges of the batch have no edge_label. Set data.task: edge.")
        found: Tensor = store.edge_label
        return found


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
