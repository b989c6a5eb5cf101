"""Messages between the launcher and its agents: one JSON object a line.

`TO_AGENT` and `FROM_AGENT` define the messages and their fields. Neither side trusts the other: an invalid message is refused
with an error of one line.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

PROTOCOL = 1
MOST_BYTES = 1 << 20  # of a line
PIECE_BYTES = 1 << 18  # of a file in one message: base64 makes it a third longer
_LONGEST_S = 1e9  # of a deadline: three decades
_MOST = 1 << 63


# The shape of a value: None, a type, a function that checks it, a list [of one shape], a dictionary of fields (more are
# allowed, and those that may be None may be missing), or a tuple of such shapes.
Shape = None | type | Callable[[Any], bool] | list[Any] | dict[str, Any] | tuple[Any, ...]


class MessageError(ValueError):
    """Raised for a line that is no valid message."""


def word(given: Any) -> bool:
    """Tells whether ``given`` can be a name, a path or an argument: a text without NUL."""
    return isinstance(given, str) and "\0" not in given and _is_text(given)


def words(given: Any) -> bool:
    """Tells whether ``given`` can be a command: a list of words, of which the first is not empty."""
    return isinstance(given, list) and bool(given) and all(map(word, given)) and given[0] != ""


def variables(given: Any) -> bool:
    """Tells whether ``given`` can be environment variables."""
    return isinstance(given, dict) and all(
        word(key) and word(value) and key and "=" not in key for key, value in given.items()
    )


def seconds(given: Any) -> bool:
    return number(given) and 0 < given <= _LONGEST_S


def number(given: Any) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and abs(given) < _MOST


def status(given: Any) -> bool:
    """Tells whether ``given`` can be an exit status of a shell: 0 to 255."""
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= 255


FAILURE: Shape = {"rank": (int, word, None), "reason": (str, None)}  # what a rank writes about its end

TO_AGENT: Mapping[str, Shape] = {
    "begin": {"protocol": int, "stop_s": seconds, "silence_s": seconds},
    "write": {"path": word, "data": str, "mode": int, "more": bool},
    "start": {
        "id": word,
        "argv": words,
        "env": variables,
        "cwd": word,
        "input": (str, None),
        "failure": (word, None),
    },
    "end": {"id": word},
    "beat": {"sent": (number, None)},
    "stop": {},
    "kill": {},
}

FROM_AGENT: Mapping[str, Shape] = {
    "hello": {"protocol": int},
    "written": {"path": str},
    "started": {"id": str},
    "lines": {"id": str, "text": str},
    "exited": {"id": str, "status": status, "reason": (str, None), "failure": (FAILURE, None)},
    "beat": {"sent": (number, None), "wall": number, "memory_bytes": (int, None)},
    "refused": {"reason": str},
    "silent": {"reason": str},
}


def encode(op: str, **fields: Any) -> bytes:
    return json.dumps({"op": op, **fields}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes, known: Mapping[str, Shape]) -> dict[str, Any]:
    """Parses and checks the message in a line. known: `TO_AGENT` or `FROM_AGENT`.  Raises `MessageError`."""
    if len(line) > MOST_BYTES:
        raise MessageError(f"a line of {len(line):,} bytes; at most {MOST_BYTES:,} are allowed")
    message = parse(line)
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise MessageError(f"no object with an op: {line[:80]!r}")
    op = message["op"]
    if op not in known:
        raise MessageError(f"unknown op {op!r:.40}")
    require(message, known[op], op)
    return message


def parse(text: bytes | str) -> Any:
    """Parses a JSON text. Raises `MessageError`, also for NaN and infinity, which are no JSON."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"no JSON: {error}: {text[:80]!r}") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def require(given: Any, shape: Shape, where: str) -> None:
    """Raises `MessageError` if a value does not have a shape; its text names the place and the value."""
    if isinstance(shape, dict):
        if not isinstance(given, Mapping):
            raise MessageError(f"{where} is {given!r:.80}, expected an object")
        for name, field in shape.items():
            require(given.get(name), field, f"{where}: {name}")
    elif isinstance(shape, list):
        if not isinstance(given, list):
            raise MessageError(f"{where} is {given!r:.80}, expected a list")
        for each in given:
            require(each, shape[0], where)
    elif isinstance(shape, tuple):
        errors = [error for each in shape if (error := _misfit(given, each, where)) is not None]
        if len(errors) == len(shape):
            raise errors[0]
    elif not _is_a(given, shape):
        raise MessageError(f"{where} is {given!r:.80}")


def _misfit(given: Any, shape: Shape, where: str) -> MessageError | None:
    try:
        require(given, shape, where)
    except MessageError as error:
        return error
    return None


def _is_a(given: Any, shape: type | Callable[[Any], bool] | None) -> bool:
    if shape is None:
        return given is None
    if not isinstance(shape, type):
        return shape(given)
    if not isinstance(given, shape) or (isinstance(given, bool) and shape is not bool):
        return False
    return _is_text(given) if isinstance(given, str) else not isinstance(given, (int, float)) or abs(given) < _MOST


def _is_text(given: str) -> bool:
    """Tells whether a text can be encoded as UTF-8. JSON may contain single surrogates, which cannot."""
    if given.isascii():
        return True
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


# The output of all processes of a job: on the terminal, with host and rank before each line, and in a file for each host.


_OF_RANK = re.compile(r"\[default(\d+)\]:(.*)", re.S)  # how torchrun marks the lines of a rank
_LAST = 40  # lines of a process that are shown once more when it fails


class MergedLog:
    """The log of a job: a file for each host, and all lines on the terminal.

    folder: folder of the run, for the files.  terminal: a text stream."""

    def __init__(self, folder: Path, terminal: IO[str]) -> None:
        self._folder, self._terminal = folder, terminal
        self._files: dict[str, IO[str]] = {}
        self._lock = threading.Lock()  # output comes from several threads
        self._tails: dict[tuple[str, str], deque[str]] = {}

    def add(self, host: str, process: str, text: str, first_rank: int = 0) -> None:
        """Logs whole lines of a process. first_rank: rank of the first trainer process of the host."""
        lines = text.removesuffix("\n").split("\n")
        named = [_named(host, process, line.rstrip("\r"), first_rank) for line in lines]
        for who, line in named:
            self._tails.setdefault((host, who), deque(maxlen=_LAST)).append(line)
        self._put(host, (f"{f'{host}:{who}' if who else host}| {line}\n" for who, line in named))

    def info(self, text: str) -> None:
        """Logs a line of the launcher itself."""
        self._put("launch", [f"launch| {text}\n"])

    def tail(self, host: str, who: str) -> list[str]:
        """Returns the last lines of a process of a host. who: number of a rank, a name such as ``server0``, or '' for others."""
        return list(self._tails.get((host, who), ()))

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _put(self, host: str, lines: Iterable[str]) -> None:
        text = "".join(lines)
        with self._lock:
            if host not in self._files:
                self._folder.mkdir(parents=True, exist_ok=True)
                name = host.replace("/", "_").replace(":", "-")
                self._files[host] = (self._folder / f"{name}.log").open("a", encoding="utf-8", errors="replace")
            self._files[host].write(text)
            self._files[host].flush()
            with contextlib.suppress(BrokenPipeError):  # `launch | head`: the files have it all
                self._terminal.write(text)
                self._terminal.flush()


def _named(host: str, process: str, line: str, first_rank: int) -> tuple[str, str]:
    """Returns the rank or the name of the process that wrote a line, and the line without torchrun's prefix."""
    if process != "trainer":
        return "" if host.endswith(f":{process}") else process, line
    marked = _OF_RANK.match(line)
    return (str(first_rank + int(marked[1])), marked[2]) if marked else ("", line)
