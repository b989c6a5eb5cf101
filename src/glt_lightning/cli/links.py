"""What the data module knows of the graph, given to the arguments of a model that has them."""

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
    "label_facts": "label_facts",
    "metadata": "metadata",
    "num_nodes": "num_nodes",
    "target_type": "target_type",
    "link_type": "edge_type",
}


_OF_LABELS = ("label_facts", "out_channels")


def link_graph(cli: LightningCLI, parser: LightningArgumentParser) -> None:
    """Links data and model; a model class that the program chooses itself only where it takes the argument."""
    for source, target in _LINKS.items():
        if cli.subclass_mode_model:
            parser.link_arguments(f"data.{source}", f"model.init_args.{target}", apply_on="instantiate")
        elif target in inspect.signature(cli._model_class).parameters and hasattr(cli._datamodule_class, source):
            parser.link_arguments(f"data.{source}", f"model.{target}", apply_on="instantiate")


def give_taken_links(cli: LightningCLI, model: Any) -> None:
    """Makes the model remember as hyperparameters only the links that its class takes.

    model: its part of the configuration, which has the hyperparameters of a checkpoint that is read.
    """
    remembered: dict[str, Any] = {}
    if model is not None:
        arguments = {**(model.get("init_args") or {}), **(model.get("dict_kwargs") or {})}
        remembered = {name: arguments[name] for name in _OF_LABELS if arguments.get(name) is not None}
    for name in _LINKS.values():  # earlier releases wrote all links into checkpoints
        if model is not None and "init_args" in model and name not in model.init_args:
            (model.get("dict_kwargs") or {}).pop(name, None)
    links = _TakenLinks(cli, "model")
    links.remembered = remembered
    cli.parser.add_instantiator(links, LightningModule, subclasses=True)


class _TakenLinks(_InstantiatorFn):
    """Lightning writes every link into the hyperparameters of a module, also those that its class has no parameter for. A
    checkpoint with these cannot be loaded again: its hyperparameters are the arguments of the class.

    remembered: what a checkpoint says of labels. It counts where the data has none: these are nodes to predict.
    """

    remembered: Mapping[str, Any] = MappingProxyType({})

    def __call__(self, class_type: Any, *args: Any, applied_instantiation_links: dict[str, Any], **kwargs: Any) -> Any:
        kwargs |= {name: value for name, value in self.remembered.items() if name in kwargs and kwargs[name] is None}
        taken = {key: value for key, value in applied_instantiation_links.items() if key.rpartition(".")[2] in kwargs}
        return super().__call__(class_type, *args, applied_instantiation_links=taken, **kwargs)
