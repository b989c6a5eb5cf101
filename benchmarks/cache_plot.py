"""Hit rate against the size of a cache, as a picture for docs/cache.md, from lines of `cache.py traffic`.

    python benchmarks/cache_plot.py OUT.svg RESULTS.jsonl... [--graphs wordnet,facebook_pages]

One panel for each graph and partition algorithm. ``best`` knows the epoch that is counted.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

_POLICIES = ("presample", "degree", "vip", "best")
_GREY = "#7d8796"  # to be read on light and dark pages
_COLORS = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _GREY)


def panel(axes: Any, title: str, found: list[dict[str, Any]]) -> None:
    """Of one graph: hit rates in % by size."""
    (plain,) = [line["remote"] for line in found if line["policy"] == "none"]
    remote = {(line["policy"], line["ratio"]): line["remote"] for line in found}
    for policy in _POLICIES:
        ratios = sorted(ratio for of, ratio in remote if of == policy and ratio)
        rates = [100 - 100 * remote[policy, ratio] / plain for ratio in ratios]
        labels, width = [f"{100 * ratio:g} %" for ratio in ratios], 4 if policy == "best" else 1.5
        axes.plot(
            labels, rates, marker="o", markersize=3, linewidth=width, alpha=0.5 if policy == "best" else 1, label=policy
        )
    axes.set(title=title, ylabel="% hits, by size of the cache")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--graphs", help="those of these names; default: all")
    args = parser.parse_args()
    found = [json.loads(text) for path in args.results for text in path.read_text().splitlines()]
    by_graph: dict[str, list[dict[str, Any]]] = {}
    for line in found:
        if line["bench"] == "cache_traffic" and (not args.graphs or line["graph"] in args.graphs.split(",")):
            by_graph.setdefault(f"{line['graph']}, {line['parts']} parts, {line['algorithm']}", []).append(line)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cache", "font.size": 8, **_COLORS}):
        figure = Figure(figsize=(4.6 * len(by_graph), 2.8), layout="constrained")
        for axes, (title, of) in zip(
            figure.subplots(1, len(by_graph), squeeze=False)[0], by_graph.items(), strict=True
        ):
            panel(axes, title, of)
        axes.legend(frameon=False)
        figure.savefig(args.out, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
