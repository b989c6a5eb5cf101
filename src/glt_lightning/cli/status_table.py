"""The status of a graph server as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = ("client", "job", "waiting", "making", "ready", "buffered", "batches", "batches/s", "bytes", "silent")
_UNITS = ("B", "kB", "MB", "GB", "TB")


def status_table(status: Mapping[str, Any]) -> str:
    """Lines about the server, its samplers and its memory, and a table of its clients."""
    samplers, memory = status["samplers"], status["memory"]
    pids = ", ".join(map(str, samplers["pids"]))
    lines = [
        f"server {status['rank']} at {status['address']}, up for {status['uptime_s']:.0f} s",
        f"partition  {status['partition']} ({status['graph']}), parts {status['parts']} of {status['num_parts']}",
        f"samplers   {len(samplers['pids'])} (pids {pids}), restarted {samplers['restarts']} times",
        f"memory     {_bytes(memory['server_bytes'])} server, "
        f"{', '.join(_bytes(each) for each in memory['sampler_bytes'])} samplers",
        f"rate       {status['batches_per_s']:g} batches/s",
        f"clients    {len(status['clients'])}",
    ]
    if status["clients"]:
        lines += ["", *_table([_COLUMNS, *(_row(client) for client in status["clients"])])]
    return "\n".join(lines)


def _row(client: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        _printable(client["client"]),
        _printable(client["job"]),
        str(client["waiting"]),
        str(client["making"]),
        str(client["ready"]),
        _bytes(client["buffered_bytes"]),
        str(client["batches"]),
        f"{client['batches_per_s']:g}",
        _bytes(client["bytes"]),
        f"{client['silent_s']:.1f} s",
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _printable(text: Any) -> str:
    """Escapes a client's name, which may contain anything, for the terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:60])


def _bytes(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {_UNITS[-1]}"
