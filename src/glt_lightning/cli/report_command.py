"""``python -m lightning report``: prints the contents of a finished partition and the traffic to expect in training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from glt_lightning.base import Fanouts, OptionError, Progress, WeightAttr
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.cli.partition_report.html import report_html
from glt_lightning.cli.partition_report.options import TrafficOptions
from glt_lightning.cli.partition_report.report import make_report
from glt_lightning.cli.partition_report.text import report_text
from glt_lightning.graph import LocalPartition
from glt_lightning.lightning import may_be_replaced, read_array, why_no_pages
from glt_lightning.partition import whole_file

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
    page = page_path(shown.html, folder)
    report = make_report(LocalPartition.open(folder), options, Progress(None))
    if page is not None:
        _write(page, report_html(report))
    print(json.dumps(report.to_json(), indent=1, allow_nan=False) if shown.json else report_text(report), flush=True)


def page_path(given: str | None, folder: Path) -> Path | None:
    """The path that ``--html`` writes to; None without it. Raises `OptionError` for a path that cannot be written."""
    if given is None:
        return None
    page = Path(given)
    if (why := why_no_pages()) is not None:
        raise OptionError(f"--html: {why}")
    if page.resolve().is_relative_to(folder.resolve()):
        raise OptionError(
            f"--html: {given} is inside the partition folder, which must not change. Choose another path."
        )
    if not page.absolute().parent.is_dir():
        raise OptionError(f"--html: there is no folder {page.absolute().parent}.")
    if page.is_dir():
        raise OptionError(f"--html: {given} is a folder; expected a file such as report.html.")
    try:
        replaced = may_be_replaced(page)
    except OSError as error:
        raise OptionError(
            f"--html: {given} cannot be replaced ({error.strerror or error}). Choose another name."
        ) from None
    if not replaced:
        raise OptionError(f"--html: {given} exists and is no page of ours. Choose another name.")
    return page


def _write(page: Path, text: str) -> None:
    try:
        with whole_file(page) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--html: cannot write {page}: {error.strerror or error}.") from None
