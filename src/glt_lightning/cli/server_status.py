"""``python -m lightning serve --status`` and ``--health``, for graph servers that run: without torch, as a probe asks often."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import Namespace

from glt_lightning.base import ClusterOptions, GLTError, OptionError
from glt_lightning.cli.messages import OneLineParser, keep_groups
from glt_lightning.cli.program import PROG
from glt_lightning.workers import ask_status

_CLUSTER = ClusterOptions()


def asks_a_server(argv: Sequence[str]) -> bool:
    """Tells whether the words are a question to a graph server and nothing else."""
    names = {word.partition("=")[0] for word in argv}
    others = any(name.startswith(("--data", "--server", "-h", "--help")) for name in names)
    return list(argv[:1]) == ["serve"] and not names.isdisjoint(("--status", "--health")) and not others


def run_question() -> None:
    """Answers the words of this process, for which `asks_a_server` is true. Raises SystemExit after an error."""
    parser = OneLineParser(prog=f"{PROG} serve", description="Asks a graph server.")
    parser.add_argument("--config", action="config", help="Configuration of fit, in YAML.")
    add_questions(parser)
    try:
        config = parser.parse_args(keep_groups(sys.argv[2:], ["cluster"]))
        answer(config, parser.instantiate_classes(Namespace(cluster=config.cluster)).cluster)
    except GLTError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2 if isinstance(error, OptionError) else 1)


def add_questions(parser: OneLineParser) -> None:
    """Adds the options of a question, and ``cluster``, whose certificates it needs."""
    parser.add_argument("--status", type=str | None, default=None, help="Show the status of the server at host:port.")
    parser.add_argument("--json", action="store_true", help="With --status: as JSON.")
    parser.add_argument(
        "--health",
        type=str | None,
        default=None,
        help="Exit with 0 if the server at host:port is healthy, else with 1.",
    )
    parser.add_argument("--cluster", type=ClusterOptions, default=_CLUSTER, help="Where the processes of the job run.")


def answer(config: Namespace, cluster: ClusterOptions) -> None:
    """Prints what ``status`` or ``health`` of the configuration asks for. Raises `GLTError` if a server gives no status, and
    SystemExit with 1 if it is not healthy."""
    if config.status is not None:
        status = ask_status(config.status, cluster)
        print(json.dumps(status, indent=2) if config.json else status_table(status), flush=True)
        return
    try:
        status = ask_status(config.health, cluster)
    except GLTError as error:
        print(f"unhealthy: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    print(f"healthy: server {status['rank']} at {config.health}, up for {status['uptime_s']:.0f} s", flush=True)


# The status of a graph server as text.


_COLUMNS = ("client", "job", "waiting", "making", "ready", "buffered", "batches", "batches/s", "bytes", "silent")
_UNITS = ("B", "kB", "MB", "GB", "TB")


def status_table(status: Mapping[str, Any]) -> str:
    """Writes lines about the server, its samplers and its memory, and a table of its clients."""
    samplers, memory = status["samplers"], status["memory"]
    pids = ", ".join(map(str, samplers["pids"]))
    lines = [
        f"server {status['rank']} at {status['address']}, up for {status['uptime_s']:.0f} s",
        f"partition  {status['partition']} ({status['graph']}), version {status['version']}, "
        f"parts {status['parts']} of {status['num_parts']}",
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
