"""docs/coming-from.md: the right column of every table runs, row after row, and so does every line of its Python blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import glt_lightning
import glt_lightning.compat.dgl
import glt_lightning.compat.glt.distributed
from glt_lightning import partition

PAGE = Path(__file__).parents[2] / "docs/coming-from.md"
RING = np.arange(20)


def ring() -> dict[str, Any]:
    """A ring of 20 nodes, each linked to the next two; features are ids."""
    return {
        "np": np,
        "edge_index": np.stack([np.repeat(RING, 2), (np.repeat(RING, 2) + np.tile([1, 2], 20)) % 20]),
        "x": RING[:, None].astype("f4"),
        "y": RING % 3,
        "node_num": 20,
        "seeds": RING[:8],
    }


def names_of_glt(stack: ExitStack) -> dict[str, Any]:
    stack.callback(glt_lightning.compat.glt.distributed.shutdown_rpc)
    return ring()


def names_of_pyg(_: ExitStack) -> dict[str, Any]:
    wanted = (
        "GLTDataModule",
        "LinkSpec",
        "Session",
        "LoaderSpec",
        "PartitionOptions",
        "SamplingOptions",
        "layers",
    )
    public = {name: getattr(glt_lightning, name) for name in wanted}
    ours = {name: getattr(partition, name) for name in ("open_source", "partition_graph", "random_link_split")}
    names = ring()
    data = Data(**{name: torch.from_numpy(names[name]) for name in ("x", "y", "edge_index")})
    data.edge_weight = torch.ones(data.num_edges)
    return public | ours | names | {"data": data, "train_mask": RING < 8}


def names_of_dgl(_: ExitStack) -> dict[str, Any]:
    Path("ip_config.txt").write_text("127.0.0.1 30050\n")
    given = names_of_pyg(_)["data"]
    given.train_mask = torch.from_numpy(RING < 8)
    return {"data": given, "torch": torch}


# Heading of the page -> what its statements need not make. What a stack is given ends after the section.
NAMES: Mapping[str, Callable[[ExitStack], dict[str, Any]]] = {
    "GLT": names_of_glt,
    "DGL": names_of_dgl,
    "PyG": names_of_pyg,
}


def statements(text: str) -> dict[str, list[str]]:
    """Heading -> the lines of its Python blocks, and the code of the right column of its tables, row by row."""
    found = {}
    for section in text.split("\n## ")[1:]:
        blocks = "\n".join(re.findall(r"```python\n(.*?)```", section, re.S))
        rows = re.findall(r"^\| (.+) \| (.+) \|$", section, re.M)
        code = ["; ".join(re.findall(r"`([^`]+)`", right)) for _, right in rows]
        found[section.partition("\n")[0]] = [each for each in [*blocks.splitlines(), *code] if each]
    return found


@pytest.mark.parametrize("heading", NAMES)
def test_every_row_runs(heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = statements(PAGE.read_text())[heading]
    assert len(rows) > 5
    with ExitStack() as stack:
        names = NAMES[heading](stack)
        for row in rows:
            try:
                exec(row, names)
            except Exception as error:
                error.add_note(f"in the statement {row}")
                raise


def test_every_section_is_run() -> None:
    assert {heading for heading, rows in statements(PAGE.read_text()).items() if rows} == set(NAMES)


def test_statements_are_found() -> None:
    page = (
        "# Page\n\n## One\n\n| a | b |\n| --- | --- |\n| `x = 0` | `x = 1` |\n| - | `y = 2` (why) |\n\n## Two\n\n"
        "```python\nz = 3  # why\n\nz += 1\n```\n\n## Three\n\ntext\n"
    )
    assert statements(page) == {"One": ["x = 1", "y = 2"], "Two": ["z = 3  # why", "z += 1"], "Three": []}
