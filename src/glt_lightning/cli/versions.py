"""``python -m lightning append`` and ``compact``: the next version of a partition, and a version as a partition of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from lightning.pytorch import LightningDataModule

from glt_lightning.base import OptionError, Progress, counted, read_yaml
from glt_lightning.cli.command_line import TrainerParser, require_data
from glt_lightning.cli.messages import keep_groups
from glt_lightning.cli.run_line import interruptible
from glt_lightning.graph import LocalPartition
from glt_lightning.lightning import GLTDataModule, checkpoints_in, forget_in_checkpoints, write_version
from glt_lightning.partition import Forgetting, compact_partition

_APPEND_DESCRIPTION = (
    "Adds new rows of the tables of a configuration to its partition, or deletes some, as the next version; the versions before "
    "stay as they are. "
    "Runs read a version that partition.version names. Reads data of the configuration, and nothing else of it."
)


def run_append(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    parser = TrainerParser(prog=prog, description=_APPEND_DESCRIPTION)
    parser.add_argument("--config", action="config", help="Configuration of fit, in YAML.")
    parser.add_argument(
        "--new",
        type=str | None,
        default=None,
        metavar="NEW.yaml",
        help="The paths of new rows: nodes and edges, as for predict.",
    )
    for kind, example in (("nodes", "paper=new.csv"), ("edges", "author__writes__paper=new.csv")):
        parser.add_argument(
            f"--{kind}",
            type=str,
            nargs="+",
            action="extend",
            default=None,
            metavar="TABLE",
            help=f"Tables of new {kind}: a path, or in a typed graph {example}.",
        )
    parser.add_argument(
        "--delete",
        type=str | None,
        default=None,
        metavar="GONE.yaml",
        help="In place of new rows: the paths of tables with the ids of nodes, and with the ends of edges, to delete.",
    )
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True, required=False)
    config = parser.parse_args(keep_groups(argv, ("data",)))
    data = require_data(parser.instantiate_classes(config).data)
    if config.delete is not None:
        if config.new is not None or config.nodes or config.edges:
            raise OptionError(
                "--delete: a version adds rows or deletes some. Append the new rows by a command of their own."
            )
        tables = _content("--delete", config.delete)
    else:
        tables = _given(config.new, config.nodes, config.edges)
    with interruptible("the versions before are whole, and nothing is left of this one"):
        line = write_version(data, tables, deletes=config.delete is not None)
    print(line, flush=True)


def _given(new: str | None, nodes: list[str] | None, edges: list[str] | None) -> dict[str, Any]:
    if new is not None and (nodes or edges):
        raise OptionError("--new: names the tables already; leave out --nodes and --edges.")
    if new is not None:
        return _content("--new", new)
    found = {kind: _tables(kind, tables) for kind, tables in (("nodes", nodes), ("edges", edges)) if tables}
    if not found:
        raise OptionError("append: no rows are given. Give --new new.yaml, or --nodes and --edges.")
    return found


def _content(option: str, path: str) -> dict[str, Any]:
    content = read_yaml(path, option=option)
    if not isinstance(content, dict) or not content:
        raise OptionError(f"{option}: {path}: expected a mapping with nodes and edges, got {content!r:.100}.")
    return content


def _tables(kind: str, tables: list[str]) -> Any:
    """Returns paths by type, or the paths of the only type."""
    pairs = [each.partition("=") for each in tables]
    if all(not equals for _, equals, _ in pairs):
        return tables
    if not all(equals for _, equals, _ in pairs):
        raise OptionError(f"--{kind}: expected paths, or TYPE=PATH for each; got {' '.join(tables)}.")
    found: dict[str, list[str]] = {}
    for name, _, path in pairs:
        found.setdefault(name, []).append(path)
    return found


# ``python -m lightning compact``


_COMPACT_DESCRIPTION = (
    "Writes a version of the partition of a configuration as a partition of its own, as if the whole graph had been partitioned "
    "anew with the same parts of nodes. The version stays as it is. Reads data of the configuration, and nothing else of it."
)


def run_compact(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    parser = TrainerParser(prog=prog, description=_COMPACT_DESCRIPTION)
    parser.add_argument("--config", action="config", help="Configuration of fit, in YAML.")
    parser.add_argument("--out", type=str, required=True, metavar="FOLDER", help="Folder of the new partition.")
    parser.add_argument(
        "--version", type=int | str, default="latest", metavar="NUMBER", help="The version: a number, or latest."
    )
    parser.add_argument(
        "--forget",
        action="store_true",
        help="Write zeros in place of deleted rows, then remove this partition and those that it was compacted from, with their "
        "versions, and the rows of converted tables; say where other copies are.",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="With --forget: show what would be removed, and write nothing."
    )
    parser.add_argument(
        "--checkpoints",
        type=str,
        nargs="+",
        action="extend",
        default=None,
        metavar="PATH",
        help="With --forget: checkpoints, or folders of some, in which embeddings of deleted nodes become zeros.",
    )
    parser.add_argument(
        "--hotness", type=str | None, default=None, help="How rows are ranked: vip, degree or presample; as before."
    )
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True, required=False)
    config = parser.parse_args(keep_groups(argv, ("data",)))
    data = require_data(parser.instantiate_classes(config).data)
    if not config.forget and (config.dry_run or config.checkpoints):
        raise OptionError(f"--{'dry_run' if config.dry_run else 'checkpoints'}: is an option of --forget.")
    with interruptible(f"the next run goes on with {config.out}"):
        if config.forget:
            _forget(config, data)
        else:
            _compact(config, data, config.version)


def _compact(config: Any, data: GLTDataModule, version: int | str) -> None:
    folder = data.partition_dir
    if not data.is_partitioned:
        raise OptionError(f"{folder}: there is no partition. Run partition first.")
    manifest = compact_partition(
        folder,
        config.out,
        version,
        forget=config.forget,
        hotness=config.hotness,
        memory_bytes=data.partition.memory_bytes,
    )
    number = manifest.made_by["compacted"]["version"]
    numbers = f"{counted(sum(manifest.num_nodes), 'node')}, {counted(sum(manifest.num_edges), 'edge')}"
    print(f"{folder}: version {number} is now {config.out}: {numbers}. Name it in partition.dir.", flush=True)


def _forget(config: Any, data: GLTDataModule) -> None:
    """Compacts, removes what has the deleted rows, and prints both; or ends that of a run that was killed."""
    folder, given = data.partition_dir, config.checkpoints or []
    checkpoints = [path for each in given for path in checkpoints_in(each)]
    found, begun = Forgetting.unfinished(config.out), True
    if found is None and not Forgetting.is_done(folder, config.out):
        if not data.is_partitioned:
            raise OptionError(f"{folder}: there is no partition. Run partition first.")
        found, begun = Forgetting.plan(folder, config.out, data.root, config.version), False
    lines = [] if found is None else found.lines
    lines += [f"{path}: embeddings of deleted nodes" for path in checkpoints]
    print(f"{'Would remove' if config.dry_run else 'To remove'}:", *(lines or ["nothing"]), sep="\n  ", flush=True)
    if config.dry_run:
        return
    left = []
    if found is not None:
        if not begun:
            _compact(config, data, found.partitions[0][2])
        left = found.run(Progress(None))
    with closing(LocalPartition.open(config.out)) as graph:
        deleted = {t: graph.deleted(n) for n, t in enumerate(graph.schema.node_types) if len(graph.deleted(n))}
    for line in forget_in_checkpoints(checkpoints, deleted):
        print(line, flush=True)
    left += [] if checkpoints else ["checkpoints of models with an embedding for each node (--checkpoints)"]
    print(
        "Removed. Deleted rows may still be in these copies, which are yours to delete:", *left, sep="\n  ", flush=True
    )
