"""The command line: ``python -m lightning fit --config F.yaml``."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.errors import GLTError, OptionError
from glt_lightning.lightning.callbacks.checkpoints import BestCheckpoint, find_best
from glt_lightning.lightning.callbacks.monitor import SamplingMonitor
from glt_lightning.lightning.callbacks.predictions import PredictionWriter
from glt_lightning.lightning.callbacks.progress_bar import SeedProgressBar
from glt_lightning.lightning.cli.links import give_taken_links, link_graph
from glt_lightning.lightning.cli.messages import OneLineParser
from glt_lightning.lightning.strategies.base import GLTStrategy
from glt_lightning.lightning.strategies.peers import RankError
from glt_lightning.options import ClusterOptions

PROG = "python -m lightning"
_DESCRIPTION = "Trains graph neural networks on partitioned graphs."
_EPILOG = (
    f"Further subcommands: partition (makes the partition of a configuration, or verifies one; {PROG} partition --help), "
    f"report (shows what a partition holds and what training on it will cost; {PROG} report --help), "
    f"serve (runs a graph server for trainers with strategy glt_server_client; {PROG} serve --help) "
    f"and certs (makes the certificates of a job; {PROG} certs --help)."
)
_CLUSTER = ClusterOptions()
_CHECKPOINT_WORDS = ("best", "last", "hpc", "registry")


class GLTCLI(LightningCLI):
    """LightningCLI with the group ``cluster``, the links from data to model, and our default callbacks."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--cluster",
            type=ClusterOptions,
            default=_CLUSTER,
            help="Where the processes of the job run; for glt strategies.",
        )
        if self.subclass_mode_data:
            parser.link_arguments(
                ("cluster", "trainer.strategy"), "data.init_args.cluster", compute_fn=_cluster_of_data
            )
        link_graph(self, parser)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        super().parse_arguments(parser, args)
        name = self.config["subcommand"]
        config = self.config[name]
        _check_strategy(config.trainer.strategy)
        _check_checkpoint(config.get("ckpt_path"))
        if name != "fit" and config.get("ckpt_path") == "best":
            # "best" is Lightning's word for the best checkpoint of the same process; here it outlives the process.
            config["ckpt_path"] = str(find_best(config.trainer.default_root_dir or os.getcwd()))
            rank_zero_info(f"the best checkpoint of the newest run: {config['ckpt_path']}")

    def instantiate_classes(self) -> None:
        give_taken_links(self, self._get(self.config, "model"))
        super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        assert self.subcommand is not None
        config = self.config_init[self.subcommand]
        chosen = config.trainer
        kwargs.setdefault("strategy", _with_cluster(chosen.strategy, config.cluster))
        given = chosen.callbacks or []
        given = list(given) if isinstance(given, list) else [given]
        if not chosen.barebones:
            given += _default_callbacks(self.subcommand, given, chosen)
        try:
            return super().instantiate_trainer(**{"callbacks": given, **kwargs})
        except (TypeError, ValueError) as error:  # how Lightning's Trainer refuses some of its options
            raise OptionError(f"trainer: {error}") from error

    def after_fit(self) -> None:
        checkpoint = self.trainer.checkpoint_callback
        if isinstance(checkpoint, ModelCheckpoint) and checkpoint.best_model_path:
            score = checkpoint.best_model_score
            said = "" if score is None else f" ({checkpoint.monitor} {score:.4f})"
            rank_zero_info(f"the best checkpoint: {checkpoint.best_model_path}{said}")


def main(args: ArgsType = None) -> None:
    """Runs the command line; an error of ours or of Lightning's is one line, unless ``GLT_TRACEBACK`` is set."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script does not put it there, and user modules are named in YAML
    try:
        argv = sys.argv[1:] if args is None else args if isinstance(args, list) else []
        if argv and argv[0] in _TOOLS:
            _TOOLS[argv[0]](argv[1:])
        else:
            _train(args)
    except Exception as error:
        known = _known(error)
        if known is None or os.environ.get("GLT_TRACEBACK"):
            raise
        if not isinstance(known, RankError):  # that was said when it happened
            rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
            print(f"error: {'' if rank == '0' else f'rank {rank}: '}{known}", file=sys.stderr, flush=True)
        sys.exit(2 if isinstance(known, (OptionError, MisconfigurationException)) else 1)


def _train(args: ArgsType) -> None:
    GLTCLI(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_kwargs={"overwrite": True},
        parser_class=OneLineParser,
        parser_kwargs={"prog": PROG, "description": _DESCRIPTION, "epilog": _EPILOG},
        args=args,
    )


def _serve(argv: Sequence[str]) -> None:
    from glt_lightning.lightning.cli.serve import run_serve

    run_serve(argv, f"{PROG} serve")


def _certs(argv: Sequence[str]) -> None:
    from glt_lightning.transport.certs import run_certs

    run_certs(list(argv))


def _partition(argv: Sequence[str]) -> None:
    from glt_lightning.lightning.cli.partition import run_partition

    run_partition(argv, f"{PROG} partition")


def _report(argv: Sequence[str]) -> None:
    from glt_lightning.lightning.cli.report import run_report

    run_report(argv, f"{PROG} report")


# Subcommands that do not run a Trainer.
_TOOLS: dict[str, Callable[[Sequence[str]], None]] = {
    "partition": _partition,
    "report": _report,
    "serve": _serve,
    "certs": _certs,
}


def _cluster_of_data(cluster: Any, strategy: Any) -> Any:
    """The options for a data module whose graph servers may have; with other strategies it samples what is here."""
    name = strategy if isinstance(strategy, str) else "" if strategy is None else strategy.class_path
    kind = StrategyRegistry[name]["strategy"].__name__ if name in StrategyRegistry else name.rpartition(".")[2]
    return cluster if kind == "GLTServerClientStrategy" else None


def _known(error: BaseException) -> BaseException | None:
    """The error that a user understands: that another rank failed, if it is for that, else the first of ours."""
    causes = [each for each in _causes(error) if isinstance(each, (GLTError, MisconfigurationException))]
    return next((each for each in causes if isinstance(each, RankError)), causes[0] if causes else None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised for."""
    while error is not None:
        yield error
        error = error.__cause__


def _check_strategy(strategy: Any) -> None:
    known = ["auto", *StrategyRegistry.available_strategies()]
    if isinstance(strategy, str) and strategy not in known:
        ours = ", ".join(name for name in known if name.startswith("glt_") and "_find_unused_" not in name)
        near = difflib.get_close_matches(strategy, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise OptionError(
            f"trainer.strategy: expected auto, {ours}, ddp or another strategy of Lightning; got {strategy!r}.{hint}"
        )


def _check_checkpoint(path: Any) -> None:
    if isinstance(path, str) and path not in _CHECKPOINT_WORDS and ":" not in path and not os.path.exists(path):
        raise OptionError(f"ckpt_path: there is no file {path!r}.")


def _with_cluster(strategy: Any, cluster: ClusterOptions) -> Any:
    """The strategy with the options of the job's processes; strategies that are not ours have no use for them."""
    if isinstance(strategy, str) and strategy in StrategyRegistry and _is_ours(StrategyRegistry[strategy]["strategy"]):
        strategy = StrategyRegistry.get(strategy)
    if isinstance(strategy, GLTStrategy) and strategy.cluster is None:
        strategy.cluster = cluster
    return strategy


def _is_ours(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, GLTStrategy)


def _default_callbacks(subcommand: str, given: list[Callback], trainer: Any) -> list[Callback]:
    """What the user has not chosen otherwise. trainer: its options."""
    wanted: dict[type, type[Callback]] = {}
    if trainer.enable_checkpointing is not False:
        wanted[Checkpoint] = BestCheckpoint
    if trainer.enable_progress_bar is not False:
        wanted[ProgressBar] = SeedProgressBar
    if subcommand == "fit":
        wanted[SamplingMonitor] = SamplingMonitor
    if subcommand == "predict":
        wanted[PredictionWriter] = PredictionWriter
    return [make() for kind, make in wanted.items() if not any(isinstance(callback, kind) for callback in given)]
