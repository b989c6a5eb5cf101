"""Starts a layer-wise run in a Trainer: over the graph of a data module, once a module's layers are checked."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from lightning.pytorch import LightningModule, Trainer

from glt_lightning.base import LayerwiseOptions, OptionError
from glt_lightning.inference import Candidates, LayerwiseLayers, LayerwiseRun, Marks, find_layers
from glt_lightning.lightning.strategies.ranks import gather_text_of
from glt_lightning.loader import LoaderSpec
from glt_lightning.tensors import DistGraph
from glt_lightning.workers import Ranks

if TYPE_CHECKING:
    from glt_lightning.lightning.datamodule import GLTDataModule

_CHECK_FANOUTS = (0, 8, 6, 4, 3)  # by number of layers: a few thousand nodes at most


def start_run(
    module: LightningModule,
    trainer: Trainer,
    data: GLTDataModule,
    options: LayerwiseOptions,
    *,
    folder: Path,
    device: torch.device,
    weight_attr: Any,
    keep_outputs: bool = False,
) -> LayerwiseRun:
    """A run of the layers of a module, after the self-check. A collective call.

    folder: for scratch files.  device: that computes.  weight_attr, keep_outputs: as of `LayerwiseRun`.
    """
    _refuse(data)
    graph = data.dist_graph
    layers = layers_of(module, graph)
    marks = Marks(graph.rank, graph.world_size, _board(trainer), options.wait_s)
    plugin: Any = trainer.precision_plugin

    def prepare(batch: Any) -> Any:
        return data.transfer_batch_to_device(plugin.convert_input(batch), device, 0)

    module.eval()
    with torch.no_grad():
        if options.self_check:  # not under autocast, whose rounding would hide what it looks for
            _check(data, graph, layers, marks, options.self_check, prepare)
        with plugin.forward_context():
            return LayerwiseRun(
                layers,
                graph,
                data.make_loader,
                marks,
                options,
                folder,
                weight_attr=weight_attr,
                threads=data.sampling.num_threads,
                keep_outputs=keep_outputs,
                prepare=prepare,
            )


def layers_of(module: LightningModule, graph: DistGraph) -> LayerwiseLayers:
    """The layers of a module, with its weights as they are now. Raises as `find_layers`."""
    edge_names = {e: list(graph.edges[e].data) for e in graph.edge_types}
    return find_layers(module, graph.node_types, edge_names, not graph.schema.homogeneous)


def _check(
    data: GLTDataModule,
    graph: DistGraph,
    layers: LayerwiseLayers,
    marks: Marks,
    most: int,
    prepare: Callable[[Any], Any],
) -> None:
    """The self-check, on all ranks: an error of one is one of all. most: seeds."""
    fanout = _CHECK_FANOUTS[min(layers.num_layers, len(_CHECK_FANOUTS) - 1)] if layers.num_layers < 6 else 2
    loaders = []
    for node_type in layers.output_types:
        nodes = Candidates.of(graph, node_type)
        at = torch.linspace(0, len(nodes) - 1, min(len(nodes), most)).long()
        seeds = graph.user_ids(at, node_type).numpy() if nodes.ids is None else nodes.ids[at.numpy()]
        spec = LoaderSpec(
            name=f"layerwise/check/{node_type}",
            seeds=seeds,
            node_type=node_type,
            num_neighbors=[fanout] * layers.num_layers,
            batch_size=most,
            exact=True,
            with_row=True,
            all_rows=True,
        )
        loaders.append((node_type, data.make_loader(spec)))

    def check() -> None:
        for node_type, loader in loaders:
            for batch in loader:
                if layers.store(batch, node_type).batch_size:
                    layers.check(prepare(batch))

    Ranks(marks.rank, marks.world_size, marks.exchange).all_or_none(check, lambda _: None)
    for _, loader in loaders:
        loader.close()


def _board(trainer: Any) -> Any:
    """What the ranks of a run tell each other by; None for one rank. A collective call."""
    if trainer.world_size == 1:
        return None
    run = gather_text_of(trainer, secrets.token_hex(8))[0]
    store = torch.distributed.distributed_c10d._get_default_store()
    return torch.distributed.PrefixStore(f"glt-layerwise/{run}", store)


def _refuse(data: GLTDataModule) -> None:
    """Raises `OptionError` for options of batches under which a node has no one output."""
    if data.sampling.time_attr is not None:
        raise OptionError(
            "layer-wise inference: sampling.time_attr: each seed has the neighbours of its own time, so that a node has no one "
            "output. Remove sampling.time_attr, or use trainer.predict."
        )
    if data.sampling.importance_neighbors is not None:
        raise OptionError(
            "layer-wise inference: sampling.importance_neighbors: layers are computed over the stored edges, and the module "
            "learned from neighbours that walks found. Use trainer.predict."
        )
    if data.batches.subgraph_type != "directional":
        raise OptionError(
            f"layer-wise inference: data.batches.subgraph_type: {data.batches.subgraph_type}: layers are computed over the "
            "stored edges. Use directional, or trainer.predict."
        )
    if data.transform is not None:
        raise OptionError(
            "layer-wise inference: data.batches.transform changes sampled batches, of which there are none. Change the graph by "
            "data.transforms, or do it in embed(batch) of the module; or use trainer.predict."
        )
