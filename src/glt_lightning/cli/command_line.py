"""The command line: ``python -m lightning fit --config F.yaml``."""

from __future__ import annotations

import difflib
import errno
import hashlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import torch.distributed
import yaml  # type: ignore[import-untyped]
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only
from tqdm import tqdm

from glt_lightning.base import (
    ClusterOptions,
    GLTError,
    OptionError,
    WriteError,
    how_threads_wait,
)
from glt_lightning.cli.embed import EmbeddingTrainer
from glt_lightning.cli.links import give_taken_links, given_links, link_graph
from glt_lightning.cli.messages import OneLineParser, misfit, unlogged
from glt_lightning.cli.past_runs import (
    RunConfig,
    find_past_run,
    hyperparameters_of,
    nothing_left,
    past_run_at,
    recorded_checkpoints,
)
from glt_lightning.cli.program import DESCRIPTION, EPILOG, PROG, quick_answer, versions
from glt_lightning.cli.run_line import INTERRUPTED, end_said, reserved_folders, run_line, without_noise
from glt_lightning.cli.subcommands import (
    TOOLS,
    asked_for_classes,
    check_strategy,
    cluster_of_data,
    list_tools,
    meet_other_hosts,
    num_samplers,
    ready_classes,
    with_cluster,
)
from glt_lightning.lightning import (
    BestCheckpoint,
    GLTDataModule,
    PrecisionProbe,
    PredictionWriter,
    RankError,
    RunReport,
    SamplingMonitor,
    unwound_by_sigterm,
)
from glt_lightning.workers import spare_samplers

_CLUSTER = ClusterOptions()
_SAMPLED = ("fit", "validate", "test", "predict")
_PAST_RUN = ("best", "last")
_NO_CHECKPOINT = "none"
_CHECKPOINT_WORDS = (*_PAST_RUN, _NO_CHECKPOINT, "hpc", "registry")

_NO_GPU = (
    f"accelerator is gpu, and torch {version('torch')} finds no GPU that it can use. Choose --trainer.accelerator cpu, or "
    "install a torch that is built for this machine's GPU and driver."
)

_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_FOLDER = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
_STORE_S = 3.0  # for the store of the job to answer
_MISFIT = "Error(s) in loading state_dict for"  # torch's


class TrainerParser(OneLineParser, LightningArgumentParser):
    """A `OneLineParser` for classes of Lightning."""

    def dump(self, *args: Any, **options: Any) -> str:
        """Writes a configuration as jsonargparse does, but does not check again what parsing has checked: Lightning writes two
        before the first step, and the checks took two thirds of that."""
        return str(super().dump(*args, **(options | {"skip_validation": True})))


def require_data(data: object) -> GLTDataModule:
    """Returns the data module of a configuration. Raises `OptionError` if it is none of this package."""
    if not isinstance(data, GLTDataModule):
        given = "nothing" if data is None else type(data).__name__
        raise OptionError(f"data: expected a GLTDataModule, got {given}. Give --config of a run, or --data.")
    return data


class GLTCLI(LightningCLI):
    """LightningCLI with the group ``cluster``, the links from data to model, and our default callbacks.

    Args:
        *classes: Classes of the model and the data module, as for Lightning's `LightningCLI`.
        **options: Further arguments of `LightningCLI`, such as ``args``, which replaces the command line of the process.

    Raises:
        SystemExit: For a wrong option, with a line on stderr that names it.

    Example:
        >>> cli = GLTCLI(GraphSAGE, GLTDataModule, run=False, args=["--data.dataset=graph.npz", "--data.batch_size=4"])
        >>> cli.model.hparams.out_channels, cli.datamodule.batch_size
        (2, 4)
    """

    _needed: str | None = None  # the subcommand whose parser is enough
    of_checkpoint: Mapping[str, Any] = MappingProxyType({})  # hyperparameters of the checkpoint that is read

    def __init__(self, *classes: Any, **options: Any) -> None:
        words = sys.argv[1:] if options.get("args") is None else options["args"]
        self._first_word = words[0] if isinstance(words, list) and words else None
        self._threads = how_threads_wait()  # before a strategy sets it for other ranks
        with ExitStack() as self._opened:
            super().__init__(*classes, **options)

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, Any]
    ) -> None:
        self._needed = (
            self._first_word
        )  # with the parsers of all five, 0.3 s of 0.8 s of CPU time went into the other four
        super().setup_parser(add_subcommands, main_kwargs, subparser_kwargs)
        self.parser.add_argument("--version", action="version", version=versions(), help="Print versions and exit.")
        if add_subcommands:
            list_tools(self.parser)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # called on the object alone
        """Subcommands of Lightning, and our own if the Trainer has them. While parsers are made, only the one that is called."""
        own = ("embed", "recommend", "deploy", "replay")
        further = {name: {"model", "datamodule"} for name in own if hasattr(self.trainer_class, name)}
        known = super().subcommands() | further
        return {self._needed: known[self._needed]} if self._needed in known else known

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--cluster",
            type=ClusterOptions,
            default=_CLUSTER,
            help="Where the processes of the job run; for glt strategies.",
        )
        kind = self._datamodule_class
        if self.subclass_mode_data or (isinstance(kind, type) and issubclass(kind, GLTDataModule)):
            target = "data.init_args.cluster" if self.subclass_mode_data else "data.cluster"
            parser.link_arguments(("cluster", "trainer.strategy"), target, compute_fn=cluster_of_data)
        link_graph(self, parser)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        super().parse_arguments(parser, args)
        name = self.config.get("subcommand")  # none with run=False
        if name in TOOLS:
            raise OptionError(f"{name}: must be the first argument: {PROG} {name} --help.")
        config = self.config if name is None else self.config[name]
        check_strategy(config.trainer.strategy)
        _check_checkpoint(config.get("ckpt_path"))
        _trust_no_url(config)
        self._given_links = given_links(config.get("model"))  # before a checkpoint adds its hyperparameters
        if name is not None:
            self._take_checkpoint(name, config)

    def _take_checkpoint(self, name: str, config: Any) -> None:
        """Resolves ``ckpt_path``. Lightning's words ``best`` and ``last`` are for checkpoints of the same process; here they also
        find those of earlier ones. Raises `OptionError` for a checkpoint of another model, and logs options that differ."""
        if "ckpt_path" not in config:  # a program's own subcommand may have no such option
            return
        word, root = config.get("ckpt_path"), config.trainer.default_root_dir or os.getcwd()
        if word is None and name != "fit":
            raise OptionError(
                f"{name}: no checkpoint is given, and the model would have random weights. Give --ckpt_path best, last or the "
                f"path of a checkpoint; --ckpt_path {_NO_CHECKPOINT} is for a module that loads weights of its own."
            )
        if word not in _PAST_RUN and not os.path.isfile(str(word)):
            return
        now = yaml.safe_load(self._parser(name).dump(config, skip_none=False, skip_check=True))
        if name == "fit" and word == "last" and not any(recorded_checkpoints(word, root, now)):
            return  # as in Lightning, for jobs that are restarted with the same command: the first one has nothing to resume
        past = find_past_run(word, root, now) if word in _PAST_RUN else past_run_at(word, now)
        config["ckpt_path"] = str(past.path)
        if word in _PAST_RUN or past.differences:
            other = f", whose model has {'; '.join(past.differences)}" if past.differences else ""
            rank_zero_info(f"ckpt_path{f' {word}' if word in _PAST_RUN else ''}: {past.path}{other}")

    def _parse_ckpt_path(self) -> None:
        """Takes the model's hyperparameters from the checkpoint. Lightning's own method takes the model's class, too, which
        `_take_checkpoint` has compared already, and refuses checkpoints of a script or of a program with a fixed class."""
        name = self.config.get("subcommand")
        path = None if name is None else self.config[name].get("ckpt_path")
        trusted = name is not None and self.config[name].get("weights_only") is False
        known = hyperparameters_of(path, not trusted) if path is not None and os.path.isfile(path) else {}
        self.of_checkpoint = dict(known)  # jsonargparse empties the other
        if known:
            if self.subclass_mode_model:
                known = {"class_path": self.config[name].model.class_path, "dict_kwargs": known}
            self.config = self.parser.parse_object({name: {"model": known}}, self.config)

    def instantiate_classes(self) -> None:
        # Samplers start while model, data and Trainer are made, which takes about as long.
        if self.subcommand in _SAMPLED:
            self._opened.enter_context(spare_samplers(num_samplers(self.config[self.subcommand])))
        maker = give_taken_links(self, self._get(self.config, "model"), self._given_links)
        try:
            super().instantiate_classes()
        except Exception:
            if maker.failure is None:
                raise
        if maker.failure is not None:  # raised here, without the pages of jsonargparse before and after it
            error, trace = maker.failure
            raise error.with_traceback(trace)
        if self.subcommand and self.config_init[self.subcommand].get("ckpt_path") == _NO_CHECKPOINT:
            self.config_init[self.subcommand]["ckpt_path"] = None  # config.yaml keeps the word

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config_init.get(str(self.subcommand), self.config_init)
        chosen = config.trainer
        kwargs.setdefault("strategy", with_cluster(chosen.strategy, config.cluster))
        given = chosen.callbacks or []
        given = list(given) if isinstance(given, list) else [given]
        if not chosen.barebones:
            given += default_callbacks(self.subcommand, given + self._callbacks_of_program(), chosen)
        try:
            trainer = super().instantiate_trainer(**{"callbacks": given, **kwargs})
        except (TypeError, ValueError, MisconfigurationException) as error:  # how Lightning's Trainer refuses options
            raise OptionError(f"trainer: {_NO_GPU if 'No supported gpu backend' in str(error) else error}") from error
        if isinstance(trainer, EmbeddingTrainer):
            trainer.shortens_log_interval = chosen.log_every_n_steps is None
        return trainer

    def _callbacks_of_program(self) -> list[Callback]:
        """The callbacks that Lightning appends: those of ``add_lightning_class_args`` and of ``trainer_defaults``."""
        classes = [self._get(self.config_init, key) for key in self._parser(self.subcommand).callback_keys]
        defaults = self.trainer_defaults.get("callbacks") or []
        return classes + (defaults if isinstance(defaults, list) else [defaults])

    def _run_subcommand(self, subcommand: str) -> None:
        path = self.config_init[subcommand].get("ckpt_path")
        if subcommand == "fit" and path is not None and (why := nothing_left(path, self.trainer)):
            rank_zero_info(why)  # no error: a job that is started until it succeeds ends here
            return
        if self._threads is not None:
            rank_zero_info(self._threads)
        try:
            with reserved_folders(self.trainer), end_said(self.trainer, subcommand, path):
                met = meet_other_hosts(self.trainer, self.config_init[subcommand].cluster)
                super()._run_subcommand(subcommand)
            del met  # by now torch's process group refers to the store
        except (RuntimeError, MisconfigurationException) as error:
            if line := unlogged(str(error), self.trainer.callback_metrics):
                raise OptionError(line) from error
            if path is None or _MISFIT not in str(error):
                raise
            raise OptionError(f"ckpt_path: {path} {misfit(str(error))}") from error
        if self.trainer.is_global_zero and not self.config_init[subcommand].trainer.fast_dev_run:
            rank_zero_info(run_line(self.trainer, subcommand, path))

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        arguments = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand == "predict" and arguments.get("return_predictions") is None:
            arguments["return_predictions"] = False  # else all are kept in memory until the end, and not used
        return arguments


def main(args: ArgsType = None) -> None:
    """Runs the command line of ``python -m lightning``.

    Args:
        args: The arguments after the program's name. None: those of this process.

    Raises:
        SystemExit: After an error of this package or of Lightning, which is printed as one line on stderr; its status is 1 or 2.
            With ``GLT_TRACEBACK`` set, the error itself is raised.

    Example:
        >>> main(["fit", "--config", "run.yaml"])
    """
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script does not put it there, and user modules are named in YAML
    try:
        argv = sys.argv[1:] if args is None else args if isinstance(args, list) else []
        with without_noise():
            _run(argv, args)
    except KeyboardInterrupt:  # before Lightning catches it
        sys.exit(INTERRUPTED)
    except Exception as error:
        for bar in list(getattr(tqdm, "_instances", ())):  # else the error begins in the line of a bar
            bar.close()
        known = _known(error)
        if known is None or os.environ.get("GLT_TRACEBACK"):
            raise
        if not (_is_logged(known) or _is_said(str(known))):
            rank = getattr(rank_zero_only, "rank", 0)
            of_all = isinstance(known, (OptionError, MisconfigurationException)) or getattr(
                known, "on_all_ranks", False
            )
            named = not rank or RankError.named(str(known)) or of_all
            print(f"error: {'' if named else f'rank {rank}: '}{known}", file=sys.stderr, flush=True)
        sys.exit(2 if isinstance(known, (OptionError, MisconfigurationException)) else 1)


def _run(argv: list[str], args: ArgsType) -> None:
    group = asked_for_classes(argv)
    if (answer := quick_answer(argv)) is not None:
        print(answer)
        sys.exit(0)  # as argparse does
    elif group is not None:
        print(ready_classes(group, f"{PROG} {argv[0]}"))
    elif argv and argv[0] in TOOLS:
        TOOLS[argv[0]].run(argv[1:], f"{PROG} {argv[0]}")
    else:
        with unwound_by_sigterm():
            run_trainer(args)


def run_trainer(args: ArgsType = None) -> None:
    """Runs a subcommand of Lightning's Trainer to its end, or shows help."""
    GLTCLI(
        LightningModule,
        LightningDataModule,
        trainer_class=EmbeddingTrainer,
        save_config_callback=RunConfig,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_kwargs={"overwrite": True},
        parser_class=TrainerParser,
        parser_kwargs={"prog": PROG, "description": DESCRIPTION, "epilog": EPILOG},
        args=args,
    )


def _is_logged(error: BaseException) -> bool:
    """Tells whether another rank of this host logs the same error."""
    others = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) != "0"
    if isinstance(error, RankError):
        return error.is_logged
    return others and isinstance(error, GLTError) and error.on_all_ranks


def _is_said(line: str) -> bool:
    """Tells whether another rank of this host has said this line, which all may have to say. A container with its own
    addresses is another host. False where they share no store, or rank 0, which has it, is gone or does not answer."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return False
    from glt_lightning.workers import place_identity

    key = f"glt/said/{socket.gethostname()}/{place_identity()}/{hashlib.blake2b(line.encode(), digest_size=16).hexdigest()}"
    said: list[int] = []

    def ask() -> None:
        with suppress(RuntimeError):
            said.append(torch.distributed.distributed_c10d._get_default_store().add(key, 1))

    # on a thread, since the store itself waits for a lost host for ever
    asking = threading.Thread(target=ask, name="glt-said", daemon=True)
    asking.start()
    asking.join(_STORE_S)
    return any(number > 1 for number in said)


def _known(error: BaseException) -> BaseException | None:
    """The error to show to the user: that another rank has failed, if this is the cause, else the first one of this package or
    of Lightning; None for any other error."""
    causes = [each for each in _causes(error) if isinstance(each, (GLTError, MisconfigurationException))]
    if not causes:
        return _missing_package(error) or _unwritable(error)
    return next((each for each in causes if isinstance(each, RankError)), causes[0])


def _missing_package(error: BaseException) -> OptionError | None:
    """An error for a class of the configuration, such as a logger, that needs a missing package and raises that itself. A failed
    import has the name of its module; it may be a mistake in the user's code, so its traceback is needed, and this is None."""
    for each in _causes(error):
        if isinstance(each, ModuleNotFoundError) and each.name is None and each is not error:
            return OptionError(f"{str(each).splitlines()[0]} Or choose another class.")
    return None


def _unwritable(error: BaseException) -> WriteError | None:
    """An error for a full disk, or a folder of the run that cannot be made, met by a logger or by Lightning; None for others."""
    for each in _causes(error):
        if not isinstance(each, OSError):
            continue
        if each.errno in _DISK_IS_FULL:
            where = "a file of this run" if each.filename is None else each.filename
            return WriteError(
                f"{where}: {each.strerror}. Free some space, or choose another folder with --trainer.default_root_dir or with "
                "save_dir of the logger. GLT_TRACEBACK=1 shows where."
            )
        if each.errno in _NO_FOLDER and each.filename is not None:
            return WriteError(
                f"{each.filename}: {each.strerror}. If it is of the logs or checkpoints of this run, choose another folder with "
                "--trainer.default_root_dir or with save_dir of the logger. GLT_TRACEBACK=1 shows where."
            )
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its chain of causes."""
    while error is not None:
        yield error
        error = error.__cause__


def _check_checkpoint(path: Any) -> None:
    if isinstance(path, str) and path not in _CHECKPOINT_WORDS and ":" not in path and not os.path.exists(path):
        near = difflib.get_close_matches(path, _PAST_RUN, n=1)
        latest = " `best` and `last` stand for the checkpoints of the latest fit."
        hint = f" Did you mean {near[0]}?" if near else latest
        raise OptionError(f"ckpt_path: there is no file {path!r}.{hint}")


def _trust_no_url(config: Any) -> None:
    """Sets ``weights_only`` for a checkpoint from the network: Lightning would unpickle such a file, which may run code, by
    default."""
    path = config.get("ckpt_path")
    if isinstance(path, str) and path.startswith("http") and config.get("weights_only") is None:
        config["weights_only"] = True
        rank_zero_info(f"ckpt_path: {path}: read with weights_only, as it comes from the network.")


# The callbacks that the command line adds.


def default_callbacks(subcommand: str | None, given: list[Callback], trainer: Any) -> list[Callback]:
    """The default callbacks that the user has not replaced. trainer: its options."""
    wanted: dict[type, type[Callback]] = {}
    if trainer.enable_checkpointing is not False:
        wanted[Checkpoint] = BestCheckpoint
    if subcommand == "fit":
        wanted |= {kind: kind for kind in (SamplingMonitor, PrecisionProbe, RunReport)}
    if subcommand == "predict":
        wanted[PredictionWriter] = PredictionWriter
    return [make() for kind, make in wanted.items() if not any(isinstance(callback, kind) for callback in given)]
