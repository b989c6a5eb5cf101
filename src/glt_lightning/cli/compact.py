"""``python -m lightning compact``: makes a partition of its own from a version of the partition of a configuration."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import LightningDataModule

from glt_lightning.base import OptionError, counted
from glt_lightning.cli.command_line import TrainerParser
from glt_lightning.cli.messages import keep_groups
from glt_lightning.cli.run_line import interruptible
from glt_lightning.graph import MANIFEST
from glt_lightning.lightning import GLTDataModule
from glt_lightning.partition import compact_partition, copies_of_rows

_DESCRIPTION = (
    "Writes a version of the partition of a configuration as a partition of its own, as if the whole graph had been partitioned "
    "anew with the same parts of nodes. The version stays as it is. Reads data of the configuration, and nothing else of it."
)


def run_compact(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    parser = TrainerParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument("--config", action="config", help="Configuration of fit, in YAML.")
    parser.add_argument("--out", type=str, required=True, metavar="FOLDER", help="Folder of the new partition.")
    parser.add_argument(
        "--version", type=int | str, default="latest", metavar="NUMBER", help="The version: a number, or latest."
    )
    parser.add_argument(
        "--forget",
        action="store_true",
        help="Write zeros in place of the attributes of deleted nodes, and say where other copies are.",
    )
    parser.add_argument(
        "--hotness", type=str | None, default=None, help="How rows are ranked: vip, degree or presample; as before."
    )
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True, required=False)
    config = parser.parse_args(keep_groups(argv, ("data",)))
    data = parser.instantiate_classes(config).data
    if not isinstance(data, GLTDataModule):
        raise OptionError("data: expected a GLTDataModule. Give --config of a run, or --data.")
    folder = data.partition_dir
    if not (folder / MANIFEST).is_file():
        raise OptionError(f"{folder}: there is no partition. Run partition first.")
    with interruptible(f"the next run goes on with {config.out}"):
        manifest = compact_partition(
            folder,
            config.out,
            config.version,
            forget=config.forget,
            hotness=config.hotness,
            memory_bytes=data.partition.memory_bytes,
        )
    number = manifest.made_by["compacted"]["version"]
    numbers = f"{counted(sum(manifest.num_nodes), 'node')}, {counted(sum(manifest.num_edges), 'edge')}"
    print(f"{folder}: version {number} is now {config.out}: {numbers}. Name it in partition.dir.", flush=True)
    if config.forget:
        places = "\n".join(f"  {place}" for place in copies_of_rows(folder, data.root, manifest))
        print(f"Deleted rows may still be in these copies, which are yours to delete:\n{places}", flush=True)
