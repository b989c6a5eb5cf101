"""Links from facts that the data module knows about the graph to the arguments of a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, _InstantiatorFn

# attribute of the data module -> parameter of the model
_LINKS = {
    "num_features": "in_channels",
    "num_classes": "out_channels",
    "num_categories": "num_categories",
    "edge_facts": "edge_facts",
    "label_facts": "label_facts",
    "metadata": "metadata",
    "num_nodes": "num_nodes",
    "target_type": "target_type",
    "link_type": "edge_type",
    "target_facts": "target_facts",
    "num_relations": "num_relations",
}

_OF_LABELS = ("label_facts", "out_channels")


def link_graph(cli: LightningCLI, parser: LightningArgumentParser) -> None:
    """Links attributes of the data module to arguments of the model. If the program fixes the model class, only to arguments that
    this takes."""
    for source, target in _LINKS.items():
        if cli.subclass_mode_model:
            parser.link_arguments(f"data.{source}", f"model.init_args.{target}", apply_on="instantiate")
        elif target in inspect.signature(cli._model_class).parameters and hasattr(cli._datamodule_class, source):
            parser.link_arguments(f"data.{source}", f"model.{target}", apply_on="instantiate")


def give_taken_links(cli: LightningCLI, model: Any) -> None:
    """Has the model save only those links as hyperparameters that its class takes.

    model: the model's part of the configuration, with the hyperparameters of a checkpoint that is read.
    """
    remembered: dict[str, Any] = {}
    known = getattr(cli, "of_checkpoint", {})
    if model is not None:
        arguments = {**(model.get("init_args") or {}), **(model.get("dict_kwargs") or {})}
        remembered = {name: arguments[name] for name in _OF_LABELS if arguments.get(name) is not None}
    for name in _LINKS.values():  # earlier releases wrote all links into checkpoints
        if model is not None and "init_args" in model and name not in model.init_args:
            (model.get("dict_kwargs") or {}).pop(name, None)
    links = _TakenLinks(cli, "model")
    links.remembered = remembered
    links.edgeless = bool(known) and known.get("edge_facts") is None
    cli.parser.add_instantiator(links, LightningModule, subclasses=True)


class _TakenLinks(_InstantiatorFn):
    """Instantiates a module with only those links that its class takes. Lightning saves every link as a hyperparameter, also
    those without a parameter of the class. A checkpoint with these cannot be loaded again: its hyperparameters are the arguments
    of the class.

    remembered: arguments about labels from a checkpoint. They are used if the data has no labels, as for nodes to predict.
    edgeless: the model is of a checkpoint of a release whose layers read nothing of edges.
    """

    remembered: Mapping[str, Any] = MappingProxyType({})
    edgeless = False

    def __call__(self, class_type: Any, *args: Any, applied_instantiation_links: dict[str, Any], **kwargs: Any) -> Any:
        kwargs |= {name: value for name, value in self.remembered.items() if name in kwargs and kwargs[name] is None}
        taken = {key: value for key, value in applied_instantiation_links.items() if key.rpartition(".")[2] in kwargs}
        if self.edgeless and "edge_facts" in kwargs:
            kwargs["edge_facts"] = None
            taken = {key: None if key.endswith(".edge_facts") else value for key, value in taken.items()}
        return super().__call__(class_type, *args, applied_instantiation_links=taken, **kwargs)
