"""`GraphSAGE`: a ready LightningModule for node classification."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data, HeteroData
from torchmetrics import Accuracy, MeanMetric

from glt_lightning.base import EDGE, DataError, EdgeType, OptionError
from glt_lightning.lightning import GLTDataModule
from glt_lightning.models.code_embedding import NumCategories
from glt_lightning.models.edges import EdgeInput, edge_inputs
from glt_lightning.models.fits import one_type, require_same_edges
from glt_lightning.models.gnn import HeterogeneousGNN, HomogeneousGNN, Metadata, errors_of_pyg
from glt_lightning.models.layerwise import ReadyLayers
from glt_lightning.models.row_embeddings import adam_of, check_node_embedding

Batch: TypeAlias = Data | HeteroData


class GraphSAGE(LightningModule):
    """Classifies nodes with a GNN of PyG, trained by Adam on the cross entropy of the seeds.

    Logs ``train_loss``, ``val_loss``, ``val_acc`` and ``test_acc``. On the command line the arguments that describe the
    graph come from the data module.

    Args:
        in_channels: Width of ``x``; per node type in a heterogeneous graph. ``None`` for nodes without features, which
            get a learned embedding.
        out_channels: Number of classes.
        hidden_channels: Width of the layers between.
        num_layers: Number of message-passing layers; best equal to the number of fan-outs.
        dropout: Probability of dropping a hidden value while training.
        lr: Learning rate.
        weight_decay: Weight decay.
        model: Name of the GNN: EdgeCNN, GAT, GCN, GIN, GraphSAGE or PNA.
        model_kwargs: Further arguments of PyG's class, such as ``{heads: 4}`` for GAT or ``{norm: layer}``.
        metadata: Node and edge types of a heterogeneous graph.
        num_nodes: Number of nodes, per node type in a heterogeneous graph; needed where nodes have no features.
        target_type: Node type of the seeds in a heterogeneous graph; only one, whose labels are predicted.
        num_categories: Number of codes of each column of ``x_codes``, per node type in a heterogeneous graph: each code gets a
            learned vector, added to the projected features.
        node_embedding: Kind of the learned embeddings of nodes without features. ``dense``: a parameter on every rank, all of it
            updated in each step. ``sparse``: rows of a `DistEmbedding`, which the ranks of the host share, trained by
            `SparseAdam` with ``lr``.
        edge_facts: Description of what edges have: ``edge_facts`` of the data module. ``None``: layers read nothing of edges.
        edge_features: Edge attributes that the layers read, any of ``edge_attr`` (with ``edge_codes``) and ``edge_weight``.
            ``None``: all that there are and that they can read; the log names those that they cannot.

    Raises:
        OptionError: For a model or arguments that do not fit the graph.

    Example:
        >>> model = GraphSAGE(in_channels=3, out_channels=2, hidden_channels=16, num_layers=2)
        >>> with Session("parts") as session:
        ...     loader = session.make_loader(LoaderSpec(name="train", split="train", num_neighbors=[2, 2], batch_size=4))
        ...     out = model(next(iter(loader)))
        >>> out.shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        in_channels: int | dict[str, int | None] | None,
        out_channels: int | None,
        hidden_channels: int = 256,
        num_layers: int = 3,
        dropout: float = 0.5,
        lr: float = 0.003,
        weight_decay: float = 0.0,
        model: str = "GraphSAGE",
        model_kwargs: dict[str, Any] | None = None,
        metadata: Metadata | None = None,
        num_nodes: int | dict[str, int] | None = None,
        target_type: str | list[str] | None = None,
        num_categories: list[int] | dict[str, list[int]] | None = None,
        node_embedding: str = "dense",
        edge_facts: dict[str, Any] | None = None,
        edge_features: list[str] | None = None,
    ) -> None:
        super().__init__()
        target_type = one_type(target_type)
        self.save_hyperparameters()
        if out_channels is None:
            raise DataError(
                "out_channels: the data set has no class labels, so its number of classes is not known. Give labels with it (y "
                "of an .npz file; for a sparse matrix dataset: {matrix: a.npz, x: x.npy, y: y.npy}), or set model.out_channels."
            )
        shape = {"hidden_channels": hidden_channels, "num_layers": num_layers, "out_channels": out_channels}
        for name, value in shape.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name}: expected an integer >= 1, got {value!r}.")
        with errors_of_pyg(f"model: {model} with model_kwargs {model_kwargs}"):
            self.gnn = _build(
                model,
                in_channels,
                metadata,
                num_nodes,
                target_type,
                dropout,
                model_kwargs or {},
                shape,
                num_categories,
                node_embedding,
                edge_inputs(
                    model, edge_facts, edge_features, None if metadata is None else metadata[1], hidden_channels
                ),
            )
        check_node_embedding(self, node_embedding)
        self.in_channels, self.out_channels, self.num_categories = in_channels, out_channels, num_categories
        self.edge_facts = edge_facts
        self.target_type = target_type if metadata is not None else None
        self.lr, self.weight_decay = lr, weight_decay
        # not a logged number with sync_dist, whose sum of seeds Lightning divides by the ranks and rounds down
        self.val_loss = MeanMetric()
        self.val_acc = Accuracy(task="multiclass", num_classes=out_channels)
        self.test_acc = Accuracy(task="multiclass", num_classes=out_channels)

    @property
    def takes_aggregates(self) -> tuple[str, ...]:
        """The values of ``sampling.aggregate_first`` that the model takes."""
        return getattr(self.gnn, "takes_aggregates", ())

    def forward(self, batch: Batch) -> Tensor:
        """Returns logits [S, C] of the S seeds of a batch."""
        if not self._seed_store(batch).batch_size:  # of a rank without a share of a small evaluation split
            return next(self.parameters()).new_empty(0, self.out_channels)
        return self.gnn(batch)

    def setup(self, stage: str) -> None:
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, GLTDataModule):
            _check_fits(self, data)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits, y = self._classify(batch)
        loss = functional.cross_entropy(logits, y) if len(y) else logits.sum() * 0  # so that all ranks make the step
        self.log("train_loss", loss, prog_bar=True, batch_size=len(y))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        logits, y = self._classify(batch)
        if len(y):  # torchmetrics refuses a batch without seeds; the metrics are summed over ranks all the same
            self.val_acc(logits, y)
            self.val_loss(functional.cross_entropy(logits, y), len(y))
        self.log("val_loss", self.val_loss, prog_bar=True, batch_size=len(y))
        self.log("val_acc", self.val_acc, prog_bar=True, batch_size=len(y))

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        logits, y = self._classify(batch)
        if len(y):
            self.test_acc(logits, y)
        self.log("test_acc", self.test_acc, prog_bar=True, batch_size=len(y))

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Returns ``n_id`` [S], the user's ids; ``pred`` [S], their classes; and ``logits`` [S, C]."""
        logits = self(batch)
        n_id = self._seed_store(batch).n_id[: len(logits)].clone()  # a view would keep the memory of the whole batch
        return {"n_id": n_id, "pred": logits.argmax(dim=-1), "logits": logits}

    def layerwise_layers(self) -> ReadyLayers:
        """The layers for layer-wise inference. edge_names: attributes of edges."""
        return ReadyLayers(self.gnn, self._columns)

    def _columns(self, out: Tensor, node_type: str) -> dict[str, Tensor]:
        if isinstance(self.gnn, HeterogeneousGNN):
            logits = self.gnn.head(out)
            return {"embedding": out, "pred": logits.argmax(dim=-1), "logits": logits}
        return {"embedding": out, "pred": out.argmax(dim=-1)}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adam_of(self, self.lr, self.weight_decay)

    def _seed_store(self, batch: Batch) -> Any:
        return batch if self.target_type is None else batch[self.target_type]

    def _classify(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns logits [S, C] and labels int64 [S] of the S seeds that have a label; a negative label means none."""
        logits = self(batch)
        store = self._seed_store(batch)
        if "y" not in store:
            raise DataError("the nodes to classify have no labels y.")
        y = store.y[: len(logits)]
        if y.dim() == 2 and y.size(1) == 1:
            y = y[:, 0]
        if y.dim() != 1 or y.is_floating_point():
            raise DataError(
                f"labels y: expected one class per node, got {y.dtype} {list(y.shape)}. Write your own training_step."
            )
        labelled = y >= 0
        return (logits, y.long()) if bool(labelled.all()) else (logits[labelled], y[labelled].long())


def _build(
    model: str,
    in_channels: int | dict[str, int | None] | None,
    metadata: Metadata | None,
    num_nodes: int | dict[str, int] | None,
    target_type: str | None,
    dropout: float,
    options: dict[str, Any],
    shape: dict[str, int],
    num_categories: NumCategories,
    node_embedding: str,
    edges: dict[EdgeType, EdgeInput],
) -> torch.nn.Module:
    if metadata is None:
        if isinstance(in_channels, dict) or isinstance(num_nodes, dict) or isinstance(num_categories, dict):
            raise OptionError(
                "metadata: needed when in_channels, num_nodes or num_categories are given per node type; got None."
            )
        return HomogeneousGNN(
            model,
            in_channels,
            **shape,
            dropout=dropout,
            num_nodes=num_nodes,
            options=options,
            num_categories=num_categories,
            node_embedding=node_embedding,
            edges=edges.get(EDGE),
        )
    if not isinstance(in_channels, dict) or not isinstance(num_nodes, dict):
        raise OptionError(
            f"in_channels, num_nodes: expected one entry per node type {metadata[0]}; got {in_channels}, {num_nodes}."
        )
    if isinstance(num_categories, list):
        raise OptionError(f"num_categories: expected an entry per node type {metadata[0]}; got {num_categories}.")
    if target_type not in metadata[0]:
        raise OptionError(f"target_type: expected one of {', '.join(metadata[0])}; got {target_type!r}.")
    return HeterogeneousGNN(
        model,
        in_channels,
        **shape,
        dropout=dropout,
        metadata=metadata,
        num_nodes=num_nodes,
        target_type=target_type,
        options=options,
        num_categories=num_categories,
        node_embedding=node_embedding,
        edges=edges,
    )


def _check_fits(model: GraphSAGE, data: GLTDataModule) -> None:
    """Raises `DataError` if the model was built for a graph of other sizes than the one it is trained or evaluated on."""
    if model.in_channels != data.num_features:
        raise DataError(
            f"the model was built for in_channels {model.in_channels}, but the graph has {data.num_features} features."
        )
    if (model.num_categories or None) != data.num_categories:
        raise DataError(
            f"the model was built for num_categories {model.num_categories}, but the graph has {data.num_categories}."
        )
    require_same_edges(model.edge_facts, data)
    if data.num_classes is not None and data.num_classes > model.out_channels:
        raise DataError(
            f"the model has out_channels {model.out_channels}, but the graph has {data.num_classes} classes."
        )
