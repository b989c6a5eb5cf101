"""`LayerwiseModule`: a module whose predictions are those of another one, computed layer by layer."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from lightning.pytorch import LightningModule
from torch import Tensor

from glt_lightning.errors import DataError, OptionError
from glt_lightning.inference.check import check_module
from glt_lightning.inference.marks import Marks
from glt_lightning.inference.protocol import LayerwiseLayers
from glt_lightning.inference.run import LayerwiseRun
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.layerwise.find import find_layers
from glt_lightning.lightning.strategies.collectives import gather_text_of
from glt_lightning.loader import LoaderSpec
from glt_lightning.options import LayerwiseOptions
from glt_lightning.producer.once_per_host import on_all_or_none
from glt_lightning.producer.ranks import Ranks
from glt_lightning.tensors.dist_graph import DistGraph

_CHECK_FANOUTS = (0, 8, 6, 4, 3)  # by number of layers: a few thousand nodes at most


class LayerwiseModule(LightningModule):
    """Predicts with the layers of ``inner``, each over the whole graph, in batches that `GLTDataModule` asks it for.

    folder: for scratch files.
    """

    def __init__(self, inner: LightningModule, options: LayerwiseOptions, folder: Path) -> None:
        super().__init__()
        self.inner, self._options, self._folder = inner, options, folder
        self.run: LayerwiseRun | None = None
        self._lengths: list[int] = []

    # What is inner's

    def setup(self, stage: str) -> None:
        self.inner.setup(stage)

    def configure_model(self) -> None:
        self.inner.configure_model()

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.inner.state_dict(*arguments, **options)

    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
        return self.inner.load_state_dict(state_dict, *arguments, **options)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.inner.on_load_checkpoint(checkpoint)

    @property
    def class_names(self) -> Any:
        return getattr(self.inner, "class_names", None)

    @property
    def takes_aggregates(self) -> tuple[str, ...]:
        return getattr(self.inner, "takes_aggregates", ())

    # Batches

    def loaders_of(self, data: GLTDataModule) -> list[Any]:
        """The loaders of a run over the graph of a data module. A collective call."""
        _refuse_limits(self.trainer)
        _refuse_times(data)
        graph = data.dist_graph
        edges = {e: list(graph.edges[e].data) for e in graph.edge_types}
        layers = find_layers(self.inner, graph.node_types, edges)
        marks = Marks(graph.rank, graph.world_size, _board(self.trainer), self._options.wait_s)
        with torch.no_grad():
            self._check(data, graph, layers, edges, marks)
        self.close()
        self.run = LayerwiseRun(
            layers,
            graph,
            data.make_loader,
            marks,
            self._options,
            self._folder,
            weight_attr=data.weight_attr_of_predictions,
            threads=data.sampling.num_threads,
        )
        loaders = self.run.loaders()
        self._lengths = [len(loader) for loader in loaders]
        return loaders

    def _check(
        self, data: GLTDataModule, graph: DistGraph, layers: LayerwiseLayers, edges: Mapping[Any, Any], marks: Marks
    ) -> None:
        """The self-check, on all ranks: an error of one is one of all."""
        if not self._options.self_check:
            return
        self.inner.eval()
        fanout = _CHECK_FANOUTS[min(layers.num_layers, len(_CHECK_FANOUTS) - 1)] if layers.num_layers < 6 else 2
        loaders = []
        for node_type in layers.output_types:
            count = graph.num_nodes(node_type)
            rows = torch.linspace(0, count - 1, min(count, self._options.self_check)).long()
            spec = LoaderSpec(
                name=f"layerwise/check/{node_type}",
                seeds=graph.user_ids(rows, node_type).numpy(),
                node_type=node_type,
                num_neighbors=[fanout] * layers.num_layers,
                batch_size=self._options.self_check,
                exact=True,
                with_row=True,
            )
            loaders.append((node_type, data.make_loader(spec)))

        def check() -> None:
            for node_type, loader in loaders:
                for batch in loader:
                    if layers.store(batch, node_type).batch_size:
                        moved = data.transfer_batch_to_device(batch, self.device, 0)
                        check_module(layers, moved, edges, graph.node_types)

        on_all_or_none(Ranks(marks.rank, marks.world_size, marks.exchange), check, lambda _: None)
        for _, loader in loaders:
            loader.close()

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Columns of the seeds where the batch is of their last layer; else nothing."""
        assert self.run is not None
        last = batch_idx + 1 == self._lengths[dataloader_idx]
        columns = self.run.take(dataloader_idx, batch, last=last)
        if not columns or len(self.node_type_names) < 2:
            return columns or {}
        number = self.node_type_names.index(self.run.steps[dataloader_idx].node_type)
        return columns | {"node_type": torch.full_like(columns["n_id"], number)}

    @property
    def node_type_names(self) -> list[str]:
        """Node types of which rows are written."""
        return [] if self.run is None else self.run.module.output_types

    def close(self) -> None:
        """Lets go of all rows. Safe to call twice."""
        if self.run is not None:
            self.run.close()
            self.run = None


def _board(trainer: Any) -> Any:
    """What the ranks of a run tell each other by; None for one rank. A collective call."""
    if trainer.world_size == 1:
        return None
    run = gather_text_of(trainer, secrets.token_hex(8))[0]
    store = torch.distributed.distributed_c10d._get_default_store()
    return torch.distributed.PrefixStore(f"glt-layerwise/{run}", store)


def _refuse_limits(trainer: Any) -> None:
    limit = trainer.limit_predict_batches  # 1 is a batch, 1.0 all of them
    if isinstance(limit, int) or limit < 1.0 or trainer.fast_dev_run:
        raise OptionError(
            "layer-wise inference: trainer.limit_predict_batches and fast_dev_run would leave out nodes that later layers read. "
            "Remove them."
        )


def _refuse_times(data: GLTDataModule) -> None:
    if data.sampling.time_attr is not None:
        raise OptionError(
            "layer-wise inference: sampling.time_attr: each seed has the neighbours of its own time, so that a node has no one "
            "output. Remove sampling.time_attr, or use trainer.predict."
        )
    if data.subgraph_type != "directional":
        raise DataError(
            f"layer-wise inference: data.subgraph_type: {data.subgraph_type}: layers are computed over the stored edges. Use "
            "directional, or trainer.predict."
        )
