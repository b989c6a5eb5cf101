"""The command line: ``python -m lightning fit --config F.yaml``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.errors import GLTError, OptionError, PeerError
from glt_lightning.lightning.checkpoints import BestCheckpoint, find_best
from glt_lightning.lightning.messages import OneLineParser
from glt_lightning.lightning.monitor import SamplingMonitor
from glt_lightning.lightning.predictions import PredictionWriter
from glt_lightning.lightning.strategy import GLTWorkerStrategy
from glt_lightning.options import ClusterOptions

PROG = "python -m lightning"
_DESCRIPTION = "Trains graph neural networks on partitioned graphs."
# What the data module knows of the graph goes to the arguments of a model that has them.
_LINKS = {
    "num_features": "in_channels",
    "num_classes": "out_channels",
    "metadata": "metadata",
    "num_nodes": "num_nodes",
    "target_type": "target_type",
}
_CLUSTER = ClusterOptions()


class GLTCLI(LightningCLI):
    """LightningCLI with the group ``cluster``, the links from data to model, and our default callbacks."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--cluster",
            type=ClusterOptions,
            default=_CLUSTER,
            help="Where the processes of the job run; for glt strategies.",
        )
        for source, target in _LINKS.items():
            parser.link_arguments(f"data.{source}", f"model.init_args.{target}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        super().parse_arguments(parser, args)
        name = self.config["subcommand"]
        config = self.config[name]
        _check_strategy(config.trainer.strategy)
        if name != "fit" and config.get("ckpt_path") == "best":
            # "best" is Lightning's word for the best checkpoint of the same process; here it outlives the process.
            config["ckpt_path"] = str(find_best(config.trainer.default_root_dir or os.getcwd()))
            rank_zero_info(f"the best checkpoint of the newest run: {config['ckpt_path']}")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        assert self.subcommand is not None
        config = self.config_init[self.subcommand]
        chosen = config.trainer
        kwargs.setdefault("strategy", _with_cluster(chosen.strategy, config.cluster))
        given = chosen.callbacks or []
        given = list(given) if isinstance(given, list) else [given]
        if not chosen.barebones:
            given += _default_callbacks(self.subcommand, given, chosen.enable_checkpointing is not False)
        return super().instantiate_trainer(**{"callbacks": given, **kwargs})

    def after_fit(self) -> None:
        checkpoint = self.trainer.checkpoint_callback
        if isinstance(checkpoint, ModelCheckpoint) and checkpoint.best_model_path:
            score = checkpoint.best_model_score
            said = "" if score is None else f" ({checkpoint.monitor} {score:.4f})"
            rank_zero_info(f"the best checkpoint: {checkpoint.best_model_path}{said}")


def main(args: ArgsType = None) -> None:
    """Runs the command line; an error of ours is one line and exit status 1, unless ``GLT_TRACEBACK`` is set."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script does not put it there, and user modules are named in YAML
    try:
        GLTCLI(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_kwargs={"overwrite": True},
            parser_class=OneLineParser,
            parser_kwargs={"prog": PROG, "description": _DESCRIPTION},
            args=args,
        )
    except Exception as error:
        ours = next((e for e in _causes(error) if isinstance(e, GLTError)), None)
        if ours is None or os.environ.get("GLT_TRACEBACK"):
            raise
        rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
        if not isinstance(ours, PeerError):  # that was said when it happened
            print(f"error: {'' if rank == '0' else f'rank {rank}: '}{ours}", file=sys.stderr, flush=True)
        sys.exit(1)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised for."""
    while error is not None:
        yield error
        error = error.__cause__


def _check_strategy(strategy: Any) -> None:
    known = sorted(StrategyRegistry.available_strategies(), key=lambda name: (not name.startswith("glt"), name))
    if isinstance(strategy, str) and strategy not in ("auto", *known):
        raise OptionError(f"trainer.strategy: expected one of auto, {', '.join(known)}; got {strategy!r}.")


def _with_cluster(strategy: Any, cluster: ClusterOptions) -> Any:
    """The strategy with the options of the job's processes; strategies that are not ours have no use for them."""
    if isinstance(strategy, str) and strategy in StrategyRegistry and _is_ours(StrategyRegistry[strategy]["strategy"]):
        strategy = StrategyRegistry.get(strategy)
    if isinstance(strategy, GLTWorkerStrategy) and strategy.cluster is None:
        strategy.cluster = cluster
    return strategy


def _is_ours(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, GLTWorkerStrategy)


def _default_callbacks(subcommand: str, given: list[Callback], checkpoints: bool) -> list[Callback]:
    """What the user has not chosen otherwise."""
    wanted: dict[type, type[Callback]] = {Checkpoint: BestCheckpoint} if checkpoints else {}
    if subcommand == "fit":
        wanted[SamplingMonitor] = SamplingMonitor
    if subcommand == "predict":
        wanted[PredictionWriter] = PredictionWriter
    return [make() for kind, make in wanted.items() if not any(isinstance(callback, kind) for callback in given)]
