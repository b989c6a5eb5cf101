"""The pictures of docs/benchmarks.md and docs/cache.md, from the lines in benchmarks/results.

    python benchmarks/charts.py [--out docs]

A bar is a median, with a line from the smallest to the largest. In the file, colours of paper and ink are variables that follow
the scheme of the reader, light or dark.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import matplotlib
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
_PAPER, _INK, _GRID = "#010101", "#020202", "#030303"  # what matplotlib draws with; `save` puts variables there
_SCHEMES = {
    _PAPER: ("paper", "#f7f5fc", "#231d33"),
    _INK: ("ink", "#24143f", "#f1ecff"),
    _GRID: ("grid", "#d5cde6", "#4a4458"),
}
_VIOLET, _AMBER, _TEAL, _ROSE, _GREY = "#7e57c2", "#b26a00", "#00838f", "#c2477f", "#8a8797"
_SYSTEMS = {"here": _VIOLET, "DGL 2.1": _AMBER, "GLT 0.2.4": _TEAL, "PyG 2.8": _ROSE}
_POLICIES = {"best": _GREY, "vip": _VIOLET, "degree": _AMBER}
Line = dict[str, Any]


class Panel(Protocol):
    """A part of a picture."""

    def draw(self, axes: Any, lines: list[Line]) -> None: ...


def _take(lines: list[Line], **wanted: Any) -> list[Line]:
    return [line for line in lines if wanted.items() <= line.items()]


@dataclass(frozen=True)
class Bars:
    """One bar below another: which lines make each, and the field that they say it by."""

    title: str
    unit: str
    figure: str
    bars: dict[str, Line]

    def draw(self, axes: Any, lines: list[Line]) -> None:
        found = {bar: [line[self.figure] for line in _take(lines, **of)] for bar, of in self.bars.items()}
        most = max(max(values) for values in found.values())
        for place, (bar, values) in enumerate(found.items()):
            middle = statistics.median(values)
            axes.barh(place, middle, height=0.62, color=_SYSTEMS.get(bar, _GREY))
            axes.plot([min(values), max(values)], [place, place], color=_INK, linewidth=1.2, solid_capstyle="butt")
            weight = "bold" if bar == "here" else "normal"
            axes.text(max(values) + most * 0.02, place, f"{middle:.3g}", va="center", fontweight=weight)
        axes.set_yticks(range(len(found)), list(found))
        axes.invert_yaxis()
        axes.set(title=self.title, xlabel=self.unit, xlim=(0, most * 1.16))
        axes.grid(axis="x", color=_GRID)


@dataclass(frozen=True)
class HitRates:
    """Of one graph, by the size of the cache and its policy."""

    title: str
    graph: str

    def draw(self, axes: Any, lines: list[Line]) -> None:
        found = _take(lines, bench="cache_traffic", graph=self.graph)
        (plain,) = [line["remote"] for line in _take(found, policy="none")]
        for policy, color in _POLICIES.items():
            rates = {line["ratio"]: 100 - 100 * line["remote"] / plain for line in _take(found, policy=policy)}
            sizes = sorted(ratio for ratio in rates if ratio)
            width = 4 if policy == "best" else 1.5
            labels = [f"{100 * size:g} %" for size in sizes]
            axes.plot(labels, [rates[size] for size in sizes], "o-", ms=3, lw=width, color=color, label=policy)
        axes.set(title=self.title, xlabel="size of the cache", ylabel="% hits")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, ncols=3)
        axes.grid(axis="y", color=_GRID)


def _sampling(title: str, work: str) -> Bars:
    about = {"work": work, "fanouts": "15,10,5"}
    whose = {"bound": {"bench": "bound", "pages": "file"}}
    for name, who in (("here", "new"), ("DGL 2.1", "dgl"), ("GLT 0.2.4", "glt")):
        whose[name] = {"bench": "sampling", "who": who}
    return Bars(title, "M edges per CPU s", "m_edges_per_cpu_s", {name: about | of for name, of in whose.items()})


def _loader() -> Bars:
    about = {"bench": "loader", "workers": 0}
    bound = {"bench": "bound", "work": "loader", "fanouts": "15,10,5", "pages": "file"}
    peers = {"DGL 2.1": about | {"who": "dgl"}, "GLT 0.2.4": about | {"who": "glt"}}
    bars = {"bound": bound, "here": about | {"who": "new", "what": "loader0"}, **peers}
    return Bars("batches with attributes", "M rows per CPU s", "m_rows_per_cpu_s", bars)


def _step(title: str, keeps: bool) -> Bars:
    about = {"bench": "step", "threads": 1, "keeps_memory": keeps}
    whose = {"matrix products": "products", "here": "ours GraphSAGE", "DGL 2.1": "dgl GraphSAGE"}
    whose["PyG 2.8"] = "stock GraphSAGE"
    return Bars(title, "CPU s per step", "cpu_s", {name: about | {"system": of} for name, of in whose.items()})


PICTURES: dict[str, tuple[str, list[Panel]]] = {
    "benchmarks-batches.svg": (
        "2026-11-22-1331-x86_64-before-after.jsonl",
        [_sampling("sample and relabel", "n_id"), _sampling("the same with e_id", "e_id"), _loader()],
    ),
    "benchmarks-step.svg": (
        "2026-11-22-2335-x86_64-step.jsonl",
        [_step("memory kept", True), _step("memory returned", False)],
    ),
    "cache-hit-rate.svg": (
        "2026-11-21-x86_64-cache.jsonl",
        [HitRates("WordNet", "wordnet"), HitRates("Facebook pages", "facebook_pages")],
    ),
}


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    text = path.read_text()
    for drawn, (name, _, _) in _SCHEMES.items():
        text = text.replace(drawn, f"var(--{name})")
    light, dark = (";".join(f"--{each[0]}:{each[of]}" for each in _SCHEMES.values()) for of in (1, 2))
    style = f"<style>svg{{{light}}} @media (prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    path.write_text(text.replace("<defs>", f"{style}\n <defs>", 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the pictures")
    args = parser.parse_args()
    inks = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK)
    papers = dict.fromkeys(("axes.facecolor", "savefig.facecolor"), _PAPER)
    sizes = {"font.size": 9, "axes.titlesize": 10, "xtick.major.size": 0, "ytick.major.size": 0}
    frame = {"axes.axisbelow": True, **{f"axes.spines.{side}": False for side in ("top", "right", "left")}}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "charts", **inks, **papers, **sizes, **frame}):
        for name, (results, panels) in PICTURES.items():
            text = (ROOT / "benchmarks/results" / results).read_text()
            lines = [json.loads(line) for line in text.splitlines()]
            figure = Figure(figsize=(4.2, 1.8 * len(panels)), layout="constrained")  # to be read on a phone, too
            for axes, panel in zip(figure.subplots(len(panels), 1), panels, strict=True):
                panel.draw(axes, lines)
            save(figure, args.out / name)


if __name__ == "__main__":
    main()
