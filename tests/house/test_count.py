"""The tree keeps what docs/decisions/011 decided: one loop, one assembler."""

from pathlib import Path

from tests.house.count import SAMPLING, numbers

ROOT = Path(__file__).parents[2]


def test_one_loop_and_one_assembler() -> None:
    found = numbers(ROOT, SAMPLING.split(","))
    assert found["k-hop loops in Python"] == "1 (ops/hops.py)"
    assert found["assemblers of a batch"] == "1 (sampler/assemble.py)"
    assert found["native k-hop calls"] == "2"


def test_row_bytes_is_defined_once() -> None:
    assert numbers(ROOT, [])["files that define row_bytes"] == "1 (ops/row_bytes.py: row_bytes)"


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
