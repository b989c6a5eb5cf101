"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
NONE = "-"


def count(value: float) -> str:
    """``1234567`` -> ``1,234,567``; means below 100 keep a digit."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def counted(number: int, thing: str) -> str:
    """``1, "node"`` -> ``1 node``; ``2000, "node"`` -> ``2,000 nodes``; ``2, "batch"`` -> ``2 batches``."""
    ending = "es" if thing.endswith("tch") else "s"
    return f"{number:,} {thing}{'' if number == 1 else ending}"


def rate(per_second: float) -> str:
    """``10547.3`` -> ``10,547``; below 10, two digits."""
    return f"{per_second:,.0f}" if per_second >= 10 or not per_second else f"{per_second:.2g}"


def duration(seconds: float) -> str:
    """``0.234`` -> ``0.23 s``, ``75`` -> ``1 min 15 s``, ``7380`` -> ``2 h 3 min``."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(num_bytes: float) -> str:
    """``1234567`` -> ``1.23 MB``."""
    value = float(num_bytes)
    for unit in _UNITS[:-1]:
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} {_UNITS[-1]}"


def percent(share: float | None) -> str:
    """``0.1234`` -> ``12.3 %``."""
    return NONE if share is None else f"{100 * share:.1f} %"


def ratio(share: float) -> str:
    """A size of a cache, without zeros at its end: ``0.05`` -> ``5 %``."""
    return f"{100 * share:g} %"


def factor(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def error(value: float | None, mean: float) -> str:
    """The standard error as a share of the mean: ``± 1.2 %``."""
    return "" if value is None or not mean else f"± {100 * value / mean:.1f} %"


def options(values: Mapping[str, object]) -> str:
    """``{"seed": 0, "undirected": True}`` -> ``seed 0, undirected yes``."""
    words = {True: "yes", False: "no"}
    return ", ".join(f"{k} {words[v] if isinstance(v, bool) else v}" for k, v in values.items())
