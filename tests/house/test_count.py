"""The tree keeps what docs/decisions/011 decided: one loop, one assembler."""

from pathlib import Path

import pytest

from tests.house.count import SAMPLING, numbers

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ours() -> dict[str, str]:
    return numbers(ROOT, SAMPLING.split(","))


def test_one_loop_and_one_assembler(ours: dict[str, str]) -> None:
    assert ours["k-hop loops in Python"] == "1 (ops/hops.py)"
    assert ours["assemblers of a batch"] == "1 (sampler/assemble.py)"
    assert ours["native k-hop calls"] == "2"


def test_one_chooser_and_one_row_bytes(ours: dict[str, str]) -> None:
    assert ours["files that choose rows for a memory"].startswith("1 (store/choose.py: ")
    assert ours["files that define row_bytes"] == "1 (ops/row_bytes.py: row_bytes)"


def test_a_second_chooser_is_counted(tmp_path: Path) -> None:
    package = tmp_path / "src" / "glt_lightning"
    package.mkdir(parents=True)
    (package / "a.py").write_text("def f(sizes, budget):\n    return (sizes.cumsum() <= budget).sum()\n")
    (package / "b.py").write_text("def g(ratio, n):\n    return int(ratio * n)\ndef h_row_bytes(rows):\n    pass\n")
    found = numbers(tmp_path, [])
    assert found["files that choose rows for a memory"] == "2 (a.py: f; b.py: g)"
    assert found["files that define row_bytes"] == "1 (b.py: h_row_bytes)"


def test_draw_options_travel_whole(ours: dict[str, str]) -> None:
    """Who needs one of them takes `DrawOptions`, or asks it for `columns`; so few files name an option."""
    assert int(ours["files that name with_edge"]) <= 10


def test_a_second_loop_is_counted(tmp_path: Path) -> None:
    package = tmp_path / "src" / "glt_lightning" / "sampler"
    package.mkdir(parents=True)
    (package / "links.py").write_text("def f(batch):\n    for hop in range(2):\n        batch.expand(hop)\n")
    (package / "more.py").write_text('"""Doc."""\n\nfrom a import edge_key, node_key  # why\n# comment\n')
    found = numbers(tmp_path, ["sampler/links.py"])
    assert found["k-hop loops in Python"] == "1 (sampler/links.py)"
    assert found["assemblers of a batch"] == "1 (sampler/more.py)"
    assert found["lines of code in src"] == "4"
    assert found["lines of the files that make batches"] == "3 in 1 files"


def test_no_module_knows_much_of_the_house(ours: dict[str, str]) -> None:
    """A module that imports more of the package is several: what they share goes into one of its own."""
    fan_out, where = ours["largest fan-out"].split(maxsplit=1)
    assert int(fan_out) <= 16, where
