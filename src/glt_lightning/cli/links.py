"""Links from facts that the data module knows about the graph to the arguments of a model."""

from __future__ import annotations

import inspect
import json
import reprlib
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, _get_module_type, _InstantiatorFn

from glt_lightning.base import OptionError

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
_NEEDED = {"in_channels": "num_features (x)", "out_channels": "num_classes (y of integers)"}  # by most modules


def link_graph(cli: LightningCLI, parser: LightningArgumentParser) -> None:
    """Links attributes of the data module to arguments of the model. If the program fixes the model class, only to arguments that
    this takes."""
    for source, target in _LINKS.items():
        if cli.subclass_mode_model:
            parser.link_arguments(f"data.{source}", f"model.init_args.{target}", apply_on="instantiate")
        elif target in inspect.signature(cli._model_class).parameters and hasattr(cli._datamodule_class, source):
            parser.link_arguments(f"data.{source}", f"model.{target}", apply_on="instantiate")


def given_links(model: Any) -> dict[str, Any]:
    """Values of linked arguments in the model's part of a parsed configuration: given by the user, or defaults of the class."""
    if model is None:
        return {}
    values = {**model, **(model.get("init_args") or {}), **(model.get("dict_kwargs") or {})}
    return {name: values[name] for name in _LINKS.values() if values.get(name) is not None}


def give_taken_links(cli: LightningCLI, model: Any, given: Mapping[str, Any]) -> _TakenLinks:
    """Has the model save only those links as hyperparameters that its class takes. Returns the maker of the model.

    model: the model's part of the configuration, with the hyperparameters of a checkpoint that is read.
    given: `given_links` of the configuration without them.
    """
    known = getattr(cli, "of_checkpoint", {})
    of_model = given_links(model)
    for name in _LINKS.values():  # earlier releases wrote all links into checkpoints
        if model is not None and "init_args" in model and name not in model.init_args:
            (model.get("dict_kwargs") or {}).pop(name, None)
    links = _TakenLinks(cli, "model")
    links.given = given
    links.remembered = {name: of_model[name] for name in _OF_LABELS if name in of_model}
    links.edgeless = bool(known) and known.get("edge_facts") is None
    # with the key of Lightning's own, which it replaces
    cli.parser.add_instantiator(links, _get_module_type(cli._model_class), subclasses=cli.subclass_mode_model)
    return links


class _TakenLinks(_InstantiatorFn):
    """Instantiates a module with only those links that its class takes. Lightning saves every link as a hyperparameter, also
    those without a parameter of the class. A checkpoint with these cannot be loaded again: its hyperparameters are the arguments
    of the class.

    given: arguments of the configuration, which are refused if the data says otherwise, or defaults of the class, which are used
        if the data has no such value.
    remembered: arguments about labels from a checkpoint. They are used if the data has no labels, as for nodes to predict.
    edgeless: the model is of a checkpoint of a release whose layers read nothing of edges.
    failure: the error of the class, and its traceback from here on, which jsonargparse hides below one of its own.
    """

    given: Mapping[str, Any] = MappingProxyType({})
    remembered: Mapping[str, Any] = MappingProxyType({})
    edgeless = False
    failure: tuple[Exception, TracebackType | None] | None = None

    def __call__(self, class_type: Any, *args: Any, applied_instantiation_links: dict[str, Any], **kwargs: Any) -> Any:
        linked = {key: key.rpartition(".")[2] for key in applied_instantiation_links}
        taken = {key: name for key, name in linked.items() if name in kwargs}
        facts = {name: kwargs[name] for name in taken.values()}
        defaults = {name: value for name, value in self.given.items() if _is_default(class_type, name, value, facts)}
        for name, value in {**defaults, **self.remembered}.items():
            if name in facts and facts[name] is None:
                kwargs[name] = value
        if self.edgeless and "edge_facts" in kwargs:
            kwargs["edge_facts"] = None
        links = {key: kwargs[name] for key, name in taken.items()}
        try:
            return super().__call__(class_type, *args, applied_instantiation_links=links, **kwargs)
        except Exception as error:
            missing = [name for name in _NEEDED if name in facts and kwargs[name] is None]
            if not missing:
                self.failure = error, error.__traceback__
                raise
            named = " and ".join(missing)
            lacks = " and ".join(_NEEDED[name] for name in missing)
            raise OptionError(
                f"model: {class_type.__name__} cannot be made: {error}. Its {named} is None, since the data has no {lacks}. Add "
                "that to the data, or let the module do without. GLT_TRACEBACK=1 shows where it failed."
            ) from error


def _is_default(class_type: Any, name: str, value: Any, facts: Mapping[str, Any]) -> bool:
    """Tells whether a value of a configuration is the class's default. Raises `OptionError` for one of the user that differs from
    the value of the data."""
    if name not in facts or _plain(value) == _plain(facts[name]):
        return False
    parser = ArgumentParser(exit_on_error=False)  # it also finds the parameters of a base class
    parser.add_class_arguments(class_type, fail_untyped=False)
    if _plain(value) == _plain(parser.get_defaults().get(name)):
        return True
    source = next(source for source, target in _LINKS.items() if target == name)
    raise OptionError(
        f"model.{name}: got {reprlib.repr(value)}, and the data fills in {reprlib.repr(facts[name])} (its {source}). Remove "
        f"{name}; if it means something else in {class_type.__name__}, rename the parameter there."
    )


def _plain(value: Any) -> str:
    """A value in a form that is the same from YAML and from the data: without tuples."""
    return json.dumps(value, sort_keys=True, default=str)
