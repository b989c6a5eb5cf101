"""Files in YAML; sizes, addresses and fan-outs, as they are written there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glt_lightning.base.errors import OptionError
from glt_lightning.base.types import MAX_FANOUT

# One list for all edge types, or one per edge type (``src__rel__dst``).
Fanouts = list[int] | dict[str, list[int]]


def parse_address(name: str, address: str) -> tuple[str, int]:
    """Reads an address: ``"host:port"`` or ``"[::1]:port"`` -> (host, port).

    Args:
        name: The option, for the error message.
        address: The address.

    Raises:
        OptionError: For anything else.

    Example:
        >>> parse_address("cluster.host", "10.0.0.1:18800")
        ('10.0.0.1', 18800)
        >>> parse_address("cluster.host", "10.0.0.1")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cluster.host: ...
    """
    host, _, port = str(address).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535 or "/" in host:
        raise OptionError(f"{name}: expected addresses like '10.0.0.1:18800' or 'node1:18800', got {address!r}.")
    return host, int(port)


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(name: str, value: int | str) -> int:
    """Reads a number of bytes: ``"1.5GiB"`` is 1610612736; integers are returned as they are.

    Args:
        name: The option, for the error message.
        value: An integer, or a number with a unit: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024).

    Raises:
        OptionError: For anything else, or for less than one byte.

    Example:
        >>> parse_bytes("cache.bytes", "2GiB"), parse_bytes("cache.bytes", 500)
        (2147483648, 500)
        >>> parse_bytes("cache.bytes", "much")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cache.bytes: ...
    """
    text = str(value).strip().upper()
    number = text.rstrip("KMGTIB ")
    try:
        size = int(float(number) * _UNITS[text[len(number) :].strip()])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < 1:
        raise OptionError(f"{name}: expected bytes such as 500000000, '500MB' or '2GiB', got {value!r}.")
    return size


def parse_fanouts(num_neighbors: list[int], name: str = "num_neighbors", least: int = 1) -> tuple[int, ...]:
    """Checks one list of fan-outs, first hop first: each -1 (all neighbours) or 1 to `MAX_FANOUT`.

    Args:
        num_neighbors: One integer per hop.
        name: The option, for the error message.
        least: The least fan-out; 0 where this is one edge type of several, which a hop may leave out.

    Raises:
        OptionError: For an empty list or any other value.

    Example:
        >>> parse_fanouts([15, 10, -1])
        (15, 10, -1)
        >>> parse_fanouts([15, 0])
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: num_neighbors: ...
    """
    ok = isinstance(num_neighbors, (list, tuple)) and len(num_neighbors) > 0
    if ok:
        ok = all(
            isinstance(k, int) and not isinstance(k, bool) and (k == -1 or least <= k <= MAX_FANOUT)
            for k in num_neighbors
        )
    if not ok:
        given = num_neighbors if isinstance(num_neighbors, (list, tuple)) else ()
        hint = " Drop the hop instead of asking for 0." if 0 in given else ""
        if any(isinstance(k, int) and k > MAX_FANOUT for k in given):
            hint = " Use -1 to take all neighbours."
        raise OptionError(
            f"{name}: expected one integer per hop, each -1 (all) or {least} to {MAX_FANOUT}; got {num_neighbors!r}.{hint}"
        )
    return tuple(num_neighbors)


def read_yaml(path: str, text: str | None = None) -> Any:
    """The contents of a YAML file; text: they were read already.

    Raises:
        OptionError: With the file, and the line where there is one: for a file that cannot be read or is not YAML, and for a key
            that is given twice, of which YAML's readers keep the last without a word.
    """
    import yaml  # type: ignore[import-untyped]  # a process that samples does not need it

    try:
        text = Path(path).read_text() if text is None else text
        _refuse_double_keys(path, yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except OSError as error:
        raise OptionError(f"--config: cannot read {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"--config: {path} is not YAML: {error}.") from None
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        begun: Any = getattr(error, "context_mark", None)
        since = (
            ""
            if begun is None or begun.line == mark.line
            else f" ({error.context}, which begins in line {begun.line + 1})"
        )
        raise OptionError(f"--config: {path}{line}: is not YAML: {reason}{since}. Correct this line.") from None


def _refuse_double_keys(path: str, node: Any) -> None:
    pairs = node.value if node is not None and node.id == "mapping" else []
    lines: dict[str, int] = {}
    for key, _ in pairs:
        line = key.start_mark.line + 1
        if key.id == "scalar" and key.value != "<<" and lines.setdefault(key.value, line) != line:
            raise OptionError(
                f"--config: {path}, line {line}: {key.value} is given twice, first in line {lines[key.value]}. Keep one of them."
            )
    for child in [value for _, value in pairs] or (node.value if node is not None and node.id == "sequence" else []):
        _refuse_double_keys(path, child)


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """The line of a YAML text where a value is, or the deepest of the keys to it that is there; None where none is.

    ``init_args`` and the subcommand may stand between keys.
    """
    import yaml

    node, line = yaml.compose(text, Loader=yaml.SafeLoader), None
    for wanted in keys:
        while node is not None and node.id == "mapping":
            found = {key.value: (key.start_mark.line + 1, value) for key, value in node.value if key.id == "scalar"}
            if wanted in found or "init_args" not in found:
                break
            node = found["init_args"][1]
        else:
            break
        if wanted not in found:
            break
        line, node = found[wanted]
    return line
