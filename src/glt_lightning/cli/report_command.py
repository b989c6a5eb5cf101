"""``python -m lightning report``: prints the contents of a finished partition and the traffic to expect in training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from glt_lightning.base import Fanouts, Progress, WeightAttr
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.graph import LocalPartition
from glt_lightning.lightning import PartitionReport, read_array
from glt_lightning.loader import TrafficOptions

_OPTIONS = TrafficOptions()
_DESCRIPTION = (
    "Shows the report of a finished partition: nodes, edges and seeds of each part, edge cut, memory per host, and the "
    "traffic to expect, with and without caches. Nothing in the folder is changed."
)


def run_report(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument("folder", type=str, help="Folder of a finished partition.")
    parser.add_argument(
        "--num_neighbors",
        type=Fanouts,
        default=_OPTIONS.num_neighbors,
        help="Fan-outs of the batches, first hop first, -1 for all; or {src__rel__dst: [...]}.",
    )
    parser.add_argument("--batch_size", type=int, default=_OPTIONS.batch_size, help="Seeds per batch and rank.")
    parser.add_argument("--seed", type=int, default=_OPTIONS.seed, help="Seed of the sampled batches.")
    parser.add_argument(
        "--weight_attr",
        type=WeightAttr,
        default=None,
        help="Edge attribute by which neighbours are drawn, as sampling.weight_attr.",
    )
    parser.add_argument(
        "--time_attr", type=str | None, default=None, help="Neighbours are drawn by time, as sampling.time_attr."
    )
    parser.add_argument("--time_window", type=int | None, default=None, help="As sampling.time_window.")
    parser.add_argument(
        "--input_time", type=str | None, default=None, help="Times of the training seeds, a file such as times.npy."
    )
    parser.add_argument("--disjoint", type=bool, default=False, help="As data.batches.disjoint.")
    parser.add_argument(
        "--neg_sampling", type=Any, default=None, help="Negatives of edges to predict, as data.links.neg_sampling."
    )
    parser.add_argument("--exclude_target_edges", type=str, default="reverse", help="none, self or reverse.")
    add_report_arguments(parser)
    config = parser.parse_args(list(argv))
    options = TrafficOptions(
        num_neighbors=config.num_neighbors,
        batch_size=config.batch_size,
        seed=config.seed,
        weight_attr=config.weight_attr,
        time_attr=config.time_attr,
        time_window=config.time_window,
        input_time=None if config.input_time is None else read_array("--input_time", config.input_time, "times"),
        disjoint=config.disjoint,
        neg_sampling=config.neg_sampling,
        exclude_target_edges=config.exclude_target_edges,
        batches=config.batches,
        cache=config.cache,
    )
    show_report(Path(config.folder), options, config)


def add_report_arguments(parser: OneLineParser) -> None:
    """Adds the options of a report, for all subcommands that print one."""
    parser.add_argument(
        "--batches", type=int, default=_OPTIONS.batches, help="Number of batches to sample from each part."
    )
    parser.add_argument(
        "--cache",
        type=list[float],
        default=list(_OPTIONS.cache),
        help="Sizes of caches of remote rows, as shares of all nodes of each type; [] for none.",
    )
    parser.add_argument("--html", type=str | None, default=None, help="Write the report to this file, as one page.")
    parser.add_argument("--json", action="store_true", help="Print the numbers as JSON instead of tables.")


def show_report(folder: Path, options: TrafficOptions, shown: Namespace) -> None:
    """Makes the report of a folder and prints it. shown: the values of `add_report_arguments`."""
    page = PartitionReport.page_path(shown.html, folder)
    report = PartitionReport.of(LocalPartition.open(folder), options, Progress(None))
    if page is not None:
        report.write(page)
    print(json.dumps(report.to_json(), indent=1, allow_nan=False) if shown.json else report.text(), flush=True)
