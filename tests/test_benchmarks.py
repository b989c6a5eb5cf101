"""The scripts of benchmarks/ run, on a graph of a few hundred nodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.partitions import partitioned, small_graph

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return partitioned(small_graph(5000), tmp_path_factory.mktemp("benchmarks")).directory


def run(script: str, *words: object) -> list[dict]:
    """The lines it printed."""
    command = [sys.executable, script, *map(str, words)]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_sampling(part: Path) -> None:
    lines = run("sampling.py", part, "--seconds", 0.01)
    cases = [(line["fanouts"], line["work"]) for line in lines if line["bench"] == "sampling"]
    assert cases == [(fanouts, work) for fanouts in ("15,10,5", "10,25") for work in ("n_id", "e_id")]
    assert all(line["m_edges_per_cpu_s"] > 0 for line in lines if line["bench"] == "sampling")
