"""``python -m lightning partition``: makes the partition of a configuration and reports on it, or verifies,
converts or (``pull``) copies one."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule

from glt_lightning.base import OptionError, PartitionError, Progress, counted, size
from glt_lightning.cli.command_line import TrainerParser, require_data
from glt_lightning.cli.messages import OneLineParser, keep_groups
from glt_lightning.cli.report_command import add_report_arguments, show_report
from glt_lightning.cli.run_line import interruptible
from glt_lightning.compat import KINDS, convert_partition, read_labels
from glt_lightning.lightning import GLTDataModule, PartitionReport, traffic_options
from glt_lightning.partition import (
    PartitionPlan,
    array_number,
    assign_graph,
    hash_partition,
    plan_partition,
    pull_partition,
    verify_partition,
)

_READ = ("data",)  # groups of a configuration that `partition` reads

_DESCRIPTION = (
    "Partitions the graph of a configuration of fit, as fit itself would, and shows the report; or, with --verify, checks "
    "every file of a finished partition. --from KIND DIR converts a partition of another system; --from --help shows how. Reads "
    "data of the configuration, and nothing else of it."
)

_OF_CONFIG = ""  # --verify without a folder


def run_partition(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    if "--from" in argv:
        run_convert(argv, prog)
        return
    parser = _parser(prog)
    config = parser.parse_args(keep_groups(argv, _READ))
    _check_one_of(config)
    if config.verify:
        _verify(Path(config.verify), config.parts)
        return
    if config.hash is not None:
        _hash(Path(config.hash))
        return
    data = require_data(parser.instantiate_classes(config).data)
    if config.verify == _OF_CONFIG:
        _verify(data.partition_dir, config.parts)
    elif config.plan:
        show_plan(data)
    elif config.assign_only is not None:
        with interruptible("nothing is left of it"):
            assign_only(data, Path(config.assign_only))
    else:
        _partition(data, config)


def _parser(prog: str) -> TrainerParser:
    parser = TrainerParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument("--config", action="config", help="Configuration of fit, in YAML.")
    parser.add_argument(
        "--verify",
        type=str | None,
        nargs="?",
        const=_OF_CONFIG,
        default=None,
        help="Check every file of a finished partition instead: of this folder, or of the one of the configuration.",
    )
    parser.add_argument(
        "--hash",
        type=str | None,
        default=None,
        metavar="FOLDER",
        help="Add hashes to the manifest of a partition of an earlier release, so that pull can copy it.",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="Show tasks, bytes, memory, disk and time of making the partition, and make nothing. Status 1 if it cannot be made.",
    )
    parser.add_argument(
        "--assign_only",
        type=str | None,
        default=None,
        metavar="FILE.npz",
        help="Assign nodes to parts, save the assignment to this file (for partition.algorithm), and stop.",
    )
    parser.add_argument(
        "--parts",
        type=str | None,
        default=None,
        metavar="0,2",
        help="With --verify: the parts that were copied to this host.",
    )
    add_report_arguments(parser)
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True, required=False)
    return parser


def _check_one_of(config: Namespace) -> None:
    given = [f"--{name}" for name in ("verify", "hash", "assign_only") if config[name] is not None]
    given += ["--plan"] if config.plan else []
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)}: give only one of them.")
    if config.parts is not None and config.verify is None:
        raise OptionError(
            "--parts: goes with --verify alone. To partition on several hosts, run the same command on each, with "
            "data.partition.engine: array (docs/partitioning.md)."
        )


def _verify(folder: Path, parts: str | None) -> None:
    numbers = None if parts is None else part_numbers(parts)
    with interruptible("nothing was changed"):
        good = verify_partition(folder, Progress(None), numbers)
    print(good.text(folder, parts), flush=True)


def _hash(folder: Path) -> None:
    with interruptible("nothing was changed"):
        added = hash_partition(folder, Progress(None))
    print(f"{folder}: hashed {counted(added, 'file')}{'' if added else '; all had hashes'}.", flush=True)


def _partition(data: GLTDataModule, config: Namespace) -> None:
    options = traffic_options(data, config.batches, config.cache)
    folder = data.partition_dir
    PartitionReport.page_path(config.html, folder)  # wrong options are found before the work
    there = data.is_partitioned
    in_array = data.partition.engine == "array"
    # A scheduler sends SIGTERM to a process that has to go, and the job goes on later.
    signals = [signal.SIGINT, *([] if in_array else [signal.SIGTERM])]
    with interruptible(f"{folder}: {'it is unchanged' if there else 'nothing is left of it'}", signals):
        data.prepare_data()
    if in_array and array_number() > 0:
        return  # the report is made once
    if not config.json:
        print(f"{'was partitioned already' if there else 'partitioned'}: {folder}\n", flush=True)
    with interruptible(f"{folder} is complete, but its report is not"):
        show_report(folder, options, config)


# ``python -m lightning partition --assign_only``


def part_numbers(text: str) -> list[int]:
    """Parses numbers of parts such as ``0,2``. Raises `OptionError` for any other text."""
    if re.fullmatch(r"\d+(,\d+)*", text) is None:
        raise OptionError(f"--parts: expected numbers of parts such as 0,2, got {text!r}.")
    return [int(number) for number in text.split(",")]


def assign_only(data: GLTDataModule, file: Path) -> None:
    """Assigns nodes to parts, saves the assignment, and prints the number of nodes of each part."""
    _require_dataset(data)
    options = data.partition.assuming(data.fanouts_of_edges, data.batch_size)
    sizes = assign_graph(data.source, file, options, undirected=data.undirected)
    print(f"assigned: {file}")
    for node_type, counts in sizes.items():
        print(f"  {node_type}: {', '.join(f'{count:,}' for count in counts)} nodes in parts 0 to {len(counts) - 1}")
    print(f"Give it as --data.partition.algorithm {file}, with all other options unchanged.", flush=True)


def show_plan(data: GLTDataModule) -> None:
    """Prints what making the partition takes. Raises `PartitionError` if it cannot be made."""
    if data.is_partitioned:
        print(f"{data.partition_dir}: was partitioned already.", flush=True)
        return
    plan, error = partition_plan(data)
    print(plan.text(data.partition_dir, data.partition), flush=True)
    if error is not None:
        raise error


def partition_plan(data: GLTDataModule) -> tuple[PartitionPlan, PartitionError | None]:
    """What making the partition of a data module takes, and why it cannot be made."""
    _require_dataset(data)
    return plan_partition(
        data.source,
        data.partition_dir,
        data.partition,
        undirected=data.undirected,
        normalize=data.normalize,
        num_neighbors=data.fanouts_of_edges,
        batch_size=data.batch_size,
    )


def _require_dataset(data: GLTDataModule) -> None:
    if data.dataset is None:
        raise OptionError("dataset: not given. Name the graph to partition: demo, graph.npz, ogbn-products.")


# ``python -m lightning pull``


_PULL_DESCRIPTION = (
    "Copies a partition, or some of its parts, with its versions, and checks each piece by its hash. A folder appears when it is "
    "complete. What was copied before an interruption stays beside it, and the same command goes on from there; parts and "
    "versions are added to a copy that exists."
)


def run_pull(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    parser = OneLineParser(prog=prog, description=_PULL_DESCRIPTION)
    parser.add_argument("url", type=str, help="A folder, or a URL of fsspec such as s3://bucket/parts.")
    parser.add_argument("folder", type=str, help="The folder of the copy.")
    parser.add_argument(
        "--parts", type=str | None, default=None, metavar="0,2", help="The parts that this host needs. Default: all."
    )
    parser.add_argument(
        "--version", type=int | str, default="latest", help="The last version to copy, with those before it; 0: none."
    )
    given = parser.parse_args(list(argv))
    folder = Path(given.folder)
    left = (
        f"what was copied is in {folder.with_name(folder.name + '.partial')}, and the same command goes on from there"
    )
    with interruptible(left):
        parts = None if given.parts is None else part_numbers(given.parts)
        pulled = pull_partition(given.url, folder, parts, version=given.version)
    version = f"version {pulled.version}, " if pulled.version else ""
    files = f"{counted(pulled.files, 'file')}, {size(pulled.bytes)}"
    print(f"{folder}: {version}{files}; copied {size(pulled.fetched)}.", flush=True)


# ``python -m lightning partition --from dgl DIR --to FOLDER``: the partition of another system becomes one of ours.


_CONVERT_DESCRIPTION = (
    "Converts a partition of GraphLearn-for-PyTorch, DGL or torch_geometric.distributed: the same parts and ids. The graph is "
    "read into memory."
)


def run_convert(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    config = _convert_parser(prog).parse_args(list(argv))
    kind, folder = config["from"]
    if kind not in KINDS:
        raise OptionError(f"--from: expected one of {', '.join(KINDS)}, and a folder; got {kind!r}.")
    labels = read_labels(config.labels or [])
    with interruptible(f"nothing is left of {config.to}"):
        manifest = convert_partition(
            kind,
            folder,
            config.to,
            python=config.python,
            labels=labels,
            edge_dir=config.edge_dir,
            timeout_s=config.timeout_s,
        )
    numbers = f"{counted(sum(manifest.num_nodes), 'node')}, {counted(sum(manifest.num_edges), 'edge')}"
    print(f"converted {folder} to {config.to}: {counted(manifest.num_parts, 'part')}, {numbers}.", flush=True)


def _convert_parser(prog: str) -> OneLineParser:
    parser = OneLineParser(prog=prog, description=_CONVERT_DESCRIPTION)
    parser.add_argument(
        "--from", nargs=2, required=True, metavar=("KIND", "DIR"), help=f"{', '.join(KINDS)}; its folder."
    )
    parser.add_argument("--to", type=str, required=True, metavar="FOLDER", help="Folder of the partition to write.")
    parser.add_argument("--python", type=str | None, default=None, help="For dgl: a Python that has the package dgl.")
    parser.add_argument(
        "--labels",
        type=str,
        nargs="+",
        default=None,
        metavar="FILE",
        help="Labels of all nodes, .pt or .npy, which glt and pyg keep apart; TYPE=FILE in a graph with several node types.",
    )
    parser.add_argument(
        "--edge_dir", type=str, default="in", help="out: batches have out-neighbours, as GLT's do unless it says 'in'."
    )
    parser.add_argument("--timeout_s", type=float, default=3600.0, help="How long DGL may take to read its partition.")
    return parser
