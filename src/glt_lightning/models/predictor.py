"""What the ready modules share: an encoder made of their arguments, steps over labels, and the ends of edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torchmetrics import MeanMetric

from glt_lightning.base import EdgeType, OptionError
from glt_lightning.lightning import GLTDataModule
from glt_lightning.models.encoders import NO_ENCODER, EncoderShape, make_encoder
from glt_lightning.models.fits import require_same_inputs
from glt_lightning.models.gnn import num_seeds
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


class Predictor(LightningModule):
    """The base of modules with an encoder that is made by name and trained by Adam."""

    def _make_encoder(self, given: Mapping[str, Any], target_type: str | tuple[str, ...] | None) -> None:
        """Makes the encoder. given: the arguments of the module, by name.  target_type: node type of the seeds, or several."""
        self.in_channels, self.num_categories = given["in_channels"], given["num_categories"]
        self.edge_facts, self.lr, self.weight_decay = given["edge_facts"], given["lr"], given["weight_decay"]
        shape = EncoderShape.of(given, target_type)
        self.encoder: Any = make_encoder(given["encoder"], given["encoder_kwargs"] or {}, shape)
        check_node_embedding(self, given["node_embedding"])
        if given["encoder"] == NO_ENCODER:
            self.num_layers = 0  # for a data module that compares them with its hops
        self.val_loss = MeanMetric()  # exact over ranks with unequal batches

    def setup(self, stage: str) -> None:
        require_same_inputs(self.trainer, self.in_channels, self.num_categories, self.edge_facts)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adam_of(self, self.lr, self.weight_decay)


class LabelPredictor(Predictor):
    """The base of modules that predict labels: of nodes, or of edges. A subclass has ``forward``, whose outputs are those of the
    seeds, and `_labels`."""

    def _make_task(self, given: Mapping[str, Any]) -> None:
        """Makes the task that the labels suggest, and its metrics. given: as for `_make_encoder`."""
        self.label_facts = given["label_facts"]
        self.task = make_task(given["task"], self.label_facts, given["class_weights"])
        names = metric_names(self.task.name, given["metrics"])
        self.checkpoint_monitor = monitor_of(given["val_metric"], names)
        self.val_metrics, self.test_metrics = (make_task_metrics(self.task, names) for _ in range(2))

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, or of the labels of a multi-label task."""
        return None if self.label_facts is None else self.label_facts["class_names"]

    def _labels(self, batch: Data | HeteroData) -> Tensor:
        """Returns the labels of the seeds, in the order of the outputs. Raises `DataError` for a batch without labels."""
        raise NotImplementedError

    def _learn(self, stage: str) -> None:
        """Says what is learned, and shows the task the labels of training where it needs them."""
        data = getattr(self.trainer, "datamodule", None)
        if stage != "fit":
            return
        if isinstance(data, GLTDataModule):
            rank_zero_info(
                f"task: {self.task.name}; the best checkpoint is that of {' '.join(self.checkpoint_monitor)}."
            )
            if self.task.needs_labels:
                self.task.learn(torch.as_tensor(data.train_labels()))
        elif getattr(self.task, "balanced", False):
            raise OptionError(
                "class_weights: balanced counts the labels of a GLTDataModule; the run has none. Give the numbers."
            )

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

    def _labelled(self, batch: Data | HeteroData) -> tuple[Tensor, Tensor]:
        """Returns the outputs and the labels of the seeds that have a label."""
        out, y = self(batch), self._labels(batch)
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


class Ends(nn.ModuleDict):
    """The last layer of each node type at an end of edges to predict: the embeddings of a batch's seeds by the encoder, mapped
    once more. Encoders end in a ReLU; a product of embeddings that are not negative would never be.

    edge_types: the edge types to predict; None stands for the one of a homogeneous graph.  plain: embeddings are not mapped, for
    an encoder that does not end in a ReLU.
    """

    like: Tensor

    def __init__(self, edge_types: Sequence[EdgeType | None], width: int, *, plain: bool = False) -> None:
        types = {t for each in edge_types for t in ends_of(each)}
        super().__init__({t: nn.Identity() if plain else nn.Linear(width, width) for t in sorted(types)})
        self.register_buffer("like", torch.empty(0, width), persistent=False)  # of no seeds
        self.typed = None not in edge_types

    def embed(self, encoder: Any, batch: Data | HeteroData) -> dict[str, Tensor]:
        """Returns embeddings [S, width] of the seeds by node type; of none for a rank without a share of a small split."""
        if not any(num_seeds(batch[t] if self.typed else batch) for t in self):
            return {t: head(self.like) for t, head in self.items()}
        found = encoder.embed(batch) if self.typed else {"node": encoder(batch)}
        return {t: head(found[t]) for t, head in self.items()}

    def layers(self, encoder: Any) -> ReadyLayers:
        """Returns the layers for layer-wise inference. edge_names: attributes of edges."""
        return ReadyLayers(encoder, lambda out, node_type: {"embedding": self[node_type](out)})


def ends_of(edge_type: EdgeType | None) -> tuple[str, str]:
    """Returns the node types of sources and destinations. edge_type: None in a homogeneous graph."""
    return ("node", "node") if edge_type is None else (edge_type[0], edge_type[2])
