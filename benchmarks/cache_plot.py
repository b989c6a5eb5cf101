"""Hit rate against the size of a cache, as a picture for docs/cache.md, from lines of `cache.py traffic`.

    python benchmarks/cache_plot.py OUT.svg RESULTS.jsonl... [--graphs wordnet,facebook_pages]

One panel for each graph and partition algorithm. ``best`` knows the epoch that is counted.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path
from typing import Any

from glt_lightning.page.plots import Series, lines

_POLICIES = ("presample", "degree", "vip", "best")  # the last one is drawn thicker
_WIDTH, _HEIGHT, _HEAD, _GAP = 440, 240, 26, 20
_COLORS = ("#059669", "#d97706", "#2563eb", "#98a2b3")
_STYLE = """
text { font: 11px system-ui, sans-serif; fill: #667085; } .title { font-size: 13px; }
.grid { stroke: #98a2b3; stroke-opacity: 0.4; }
.line { fill: none; stroke-width: 1.5; } .line.thick { stroke-width: 4; stroke-opacity: 0.5; }
""" + "".join(
    f".s{n} {{ stroke: {color}; }} rect.s{n}, circle.s{n} {{ fill: {color}; }}\n" for n, color in enumerate(_COLORS)
)


def panel(title: str, found: list[dict[str, Any]], left: int) -> str:
    """Of one graph: hit rates in % by size."""
    (plain,) = [line["remote"] for line in found if line["policy"] == "none"]
    ratios = sorted({line["ratio"] for line in found if line["ratio"]})
    remote = {(line["policy"], line["ratio"]): line["remote"] for line in found}
    series = []
    for policy in _POLICIES:
        rates = [1 - remote[policy, r] / plain if (policy, r) in remote else None for r in ratios]
        series.append(Series(policy, tuple(None if rate is None else 100 * rate for rate in rates)))
    svg = lines([f"{100 * ratio:g} %" for ratio in ratios], series, "% hits, by size of the cache")
    drawing = svg[svg.index(">") + 1 : svg.index("</svg>")]
    return f'<g transform="translate({left} {_HEAD})"><text class="title" x="60" y="-8">{escape(title)}</text>{drawing}</g>'


def legend(width: int, y: int) -> str:
    entries = []
    for number, policy in enumerate(_POLICIES):
        x = width // 2 - 160 + 90 * number
        entries.append(
            f'<rect class="s{number}" x="{x}" y="{y - 9}" width="10" height="10"/><text x="{x + 16}" y="{y}">{policy}</text>'
        )
    return "".join(entries)


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
    panels = [panel(title, of, i * (_WIDTH + _GAP)) for i, (title, of) in enumerate(by_graph.items())]
    width, height = len(panels) * (_WIDTH + _GAP) - _GAP, _HEAD + _HEIGHT + 24
    args.out.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>Hit rate by size of the cache</title><style>{_STYLE}</style>"
        + "\n".join([*panels, legend(width, height - 8)])
        + "</svg>\n"
    )


if __name__ == "__main__":
    main()
