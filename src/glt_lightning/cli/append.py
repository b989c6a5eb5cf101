"""``python -m lightning append``: adds rows of tables to a partition, or deletes some, as its next version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule

from glt_lightning.base import OptionError, counted, edge_type_str, read_yaml
from glt_lightning.cli.command_line import TrainerParser
from glt_lightning.cli.messages import keep_groups
from glt_lightning.cli.run_line import interruptible
from glt_lightning.graph import MANIFEST, Manifest
from glt_lightning.lightning import GLTDataModule, is_tables
from glt_lightning.partition import LaterTables, append_rows, delete_rows, list_versions, read_later, read_versions

_DESCRIPTION = (
    "Adds new rows of the tables of a configuration to its partition, or deletes some, as the next version; the versions before "
    "stay as they are. "
    "Runs read a version that partition.version names. Reads data of the configuration, and nothing else of it."
)


_WHOLE = "the versions before are whole, and nothing is left of this one"


def run_append(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    parser = TrainerParser(prog=prog, description=_DESCRIPTION)
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
    data = parser.instantiate_classes(config).data
    if not isinstance(data, GLTDataModule):
        raise OptionError("data: expected a GLTDataModule. Give --config of a run, or --data.")
    if config.delete is not None:
        if config.new is not None or config.nodes or config.edges:
            raise OptionError(
                "--delete: a version adds rows or deletes some. Append the new rows by a command of their own."
            )
        _delete(data, _content("--delete", config.delete))
        return
    _append(data, _given(config.new, config.nodes, config.edges))


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


def _folder(data: GLTDataModule) -> Path:
    folder = data.partition_dir
    if not is_tables(data.dataset):
        raise OptionError(
            "append: data.dataset is no mapping of tables. In Python, append_rows and delete_rows take arrays."
        )
    if not (folder / MANIFEST).is_file():
        raise OptionError(f"{folder}: there is no partition to append to. Run partition first.")
    return folder


def _append(data: GLTDataModule, given: dict[str, Any]) -> None:
    folder = _folder(data)
    manifest = Manifest.load(folder)
    appended = read_versions(folder, manifest, "latest")
    later = read_later(data.dataset, given, data.root, manifest, folder, appended)
    with interruptible(_WHOLE):
        number = append_rows(folder, later.additions, later.ids, after=appended.version)
    what = [f"{counted(n.count, 'node')} of type {t}" for t, n in later.additions.nodes.items()]
    what += [
        f"{counted(e.edge_index.shape[1], 'edge')} of type {edge_type_str(k)}" for k, e in later.additions.edges.items()
    ]
    print(f"{folder}: version {number}: {', '.join(what)}", flush=True)


def _delete(data: GLTDataModule, given: dict[str, Any]) -> None:
    folder = _folder(data)
    manifest = Manifest.load(folder)
    appended = read_versions(folder, manifest, "latest")
    nodes, edges = LaterTables(data.dataset, data.root, manifest, folder, appended).read_deleted(given)
    with interruptible(_WHOLE):
        number = delete_rows(folder, nodes, edges, after=appended.version)
    gone = list_versions(folder)[number - 1]
    what = [f"{counted(n, 'node')} of type {t}" for t, n in gone.deleted_nodes.items()]
    what += [f"{counted(n, 'edge')} of type {e}" for e, n in gone.deleted_edges.items()]
    print(f"{folder}: version {number}: without {', '.join(what) or 'anything'}", flush=True)
