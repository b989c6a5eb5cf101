"""Progress goes to stderr when asked for, or when stderr is a terminal; never elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from glt_lightning.base import PartitionOptions, Progress
from glt_lightning.partition import partition_graph
from tests.helpers.partition_truth import single


@pytest.mark.parametrize(
    ("progress", "terminal", "shown"), [(None, False, False), (True, False, True), (False, True, False)]
)
def test_progress(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    progress: bool | None,
    terminal: bool,
    shown: bool,
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    partition_graph(single([(0, 1), (1, 2)], 3), tmp_path / "p", PartitionOptions(), progress=progress)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("reading edges" in err and "writing edges" in err and "edges/s" in err) == shown


@pytest.mark.parametrize(("total", "shown"), [(40, "40/40 "), (0, "0 rows"), (4000, "4.00k/4.00k ")])
def test_small_counts_are_whole_numbers(capsys: pytest.CaptureFixture[str], total: int, shown: str) -> None:
    with Progress(True).phase("reading", total, "rows") as done:
        done(total)
    assert shown in capsys.readouterr().err.rpartition("\r")[2]
