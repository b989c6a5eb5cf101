"""`NodePredictor`: a ready LightningModule that predicts classes, labels or numbers of nodes."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import DataError
from glt_lightning.lightning import GLTDataModule
from glt_lightning.models.fits import one_type
from glt_lightning.models.gnn import Metadata
from glt_lightning.models.layerwise import ReadyLayers
from glt_lightning.models.predictor import LabelPredictor
from glt_lightning.models.tasks import make_task

Batch: TypeAlias = Data | HeteroData


class NodePredictor(LabelPredictor):
    """Predicts classes, labels or numbers of nodes with a GNN of PyG, trained by Adam.

    Logs ``train_loss``, ``val_loss``, and each metric for validation and test (``val_acc``, ``test_acc``). On the command line
    the arguments that describe the graph and its labels come from the data module.

    Args:
        in_channels: Width of ``x``; per node type in a heterogeneous graph. ``None`` for nodes without features, which
            get a learned embedding.
        label_facts: Description of the labels: ``label_facts`` of the data module.
        task: ``multiclass``, ``binary``, ``multilabel``, ``regression``, or ``ordinal`` for classes that have an order. ``None``:
            the one that the labels suggest.
        encoder: Name of the GNN: EdgeCNN, GAT, GCN, GIN, GraphSAGE, PNA, HGT, RGCN, ``none``, or a convolution of PyG such as
            ``GATv2Conv``.
        encoder_kwargs: Further arguments of PyG's class, such as ``{heads: 4}`` for GAT or HGT.
        hidden_channels: Width of the layers and of the embeddings.
        num_layers: Number of message-passing layers; best equal to the number of fan-outs.
        dropout: Probability of dropping a hidden value while training.
        lr: Learning rate.
        weight_decay: Weight decay.
        class_weights: Weights of the classes in the loss: ``balanced`` (the rarer among the training seeds, the greater), a list
            with a number for each, or numbers by name of the class. ``None``: all weigh the same.
        metrics: Metrics that are logged besides the loss: any of acc, macro_acc, f1, micro_f1, auc, ap, precision, recall and
            mcc; for a regression any of mae, mse, rmse and r2. ``None``: those that suit the task.
        val_metric: Metric that chooses the best checkpoint, such as ``val_auc`` or ``val_loss``. ``None``: the first.
        embeddings: Add the ``embedding`` of each node, its last hidden layer, to predictions.
        metadata: Node and edge types of a heterogeneous graph.
        num_nodes: Number of nodes, per node type in a heterogeneous graph; needed where nodes have no features.
        target_type: Node type of the seeds in a heterogeneous graph; only one, whose labels are predicted.
        num_categories: Number of codes of each column of ``x_codes``, per node type in a heterogeneous graph: each code gets a
            learned vector.
        node_embedding: Kind of the learned embeddings of nodes without features. ``dense``: a parameter on every rank, all of it
            updated in each step. ``sparse``: rows of a `DistEmbedding`, which the ranks of the host share, trained by
            `SparseAdam` with ``lr``.
        edge_facts: Description of what edges have: ``edge_facts`` of the data module. ``None``: layers read nothing of edges.
        edge_features: Edge attributes that the layers read, any of ``edge_attr`` (with ``edge_codes``) and ``edge_weight``.
            ``None``: all that there are and that they can read; the log names those that they cannot.

    Raises:
        OptionError: For a task, encoder or metric that does not fit the labels or the graph.

    Example:
        >>> model = NodePredictor(datamodule.num_features, datamodule.label_facts, encoder="GAT", num_layers=2)
        >>> trainer = Trainer(max_epochs=1)
        >>> trainer.fit(model, datamodule)
        >>> [name for name in sorted(trainer.callback_metrics) if name.startswith("val_")]
        ['val_acc', 'val_auc', 'val_loss']
    """

    def __init__(
        self,
        in_channels: int | dict[str, int | None] | None,
        label_facts: dict[str, Any] | None,
        task: str | None = None,
        encoder: str = "GraphSAGE",
        encoder_kwargs: dict[str, Any] | None = None,
        hidden_channels: int = 256,
        num_layers: int = 3,
        dropout: float = 0.5,
        lr: float = 0.003,
        weight_decay: float = 0.0,
        class_weights: str | list[float] | dict[str, float] | None = None,
        metrics: list[str] | None = None,
        val_metric: str | None = None,
        embeddings: bool = False,
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
        given = locals()
        self._make_task(given)
        self._make_encoder(given, target_type)
        self.head = nn.Linear(hidden_channels, self.task.out_channels)
        self.embeddings = embeddings
        self.target_type = target_type if metadata is not None else None

    @property
    def takes_aggregates(self) -> tuple[str, ...]:
        """The values of ``sampling.aggregate_first`` that the encoder takes."""
        return getattr(self.encoder, "takes_aggregates", ())

    def embed(self, batch: Batch) -> Tensor:
        """Returns embeddings [S, hidden_channels] of the S seeds of a batch."""
        if not self._seed_store(batch).batch_size:  # of a rank without a share of a small evaluation split
            return self.head.weight.new_empty(0, self.head.in_features)
        return self.encoder(batch)

    def forward(self, batch: Batch) -> Tensor:
        """Returns outputs [S, out_channels] for the S seeds of a batch: logits, or numbers."""
        return self.head(self.embed(batch))

    def setup(self, stage: str) -> None:
        super().setup(stage)
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, GLTDataModule):
            self._check_fits(data)
        self._learn(stage)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Returns ``n_id`` [S], the user's ids; ``pred`` [S] or [S, D]; ``probability`` of classes; ``embedding`` if the option
        ``embeddings`` is set."""
        embedding = self.embed(batch)
        n_id = self._seed_store(batch).n_id[: len(embedding)].clone()  # a view would keep the memory of the whole batch
        rows = {"n_id": n_id, **self.task.predict(self.head(embedding))}
        return rows | {"embedding": embedding} if self.embeddings else rows

    def layerwise_layers(self) -> ReadyLayers:
        """The layers for layer-wise inference. edge_names: attributes of edges."""
        return ReadyLayers(self.encoder, lambda out, node_type: {"embedding": out} | self.task.predict(self.head(out)))

    def _seed_store(self, batch: Batch) -> Any:
        return batch if self.target_type is None else batch[self.target_type]

    def _labels(self, batch: Batch) -> Tensor:
        store = self._seed_store(batch)
        if "y" not in store:
            raise DataError("the seeds have no labels y.")
        found: Tensor = store.y[: int(store.batch_size)]
        return found

    def _check_fits(self, data: GLTDataModule) -> None:
        """Raises `DataError` if the model was built for a graph of other outputs than the one it is trained or evaluated on."""
        found = make_task(self.task.name, data.label_facts, None) if data.label_facts is not None else self.task
        exactly = self.task.name in (
            "multilabel",
            "regression",
        )  # fewer classes may occur, but fewer columns are different ones
        if found.out_channels > self.task.out_channels or (exactly and found.out_channels != self.task.out_channels):
            raise DataError(
                f"the model was built for {self.task.out_channels} outputs, but the labels of the graph need "
                f"{found.out_channels}."
            )
