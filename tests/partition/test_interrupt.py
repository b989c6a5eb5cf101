"""METIS and streaming are interrupted, killed or run out of disk: nothing half-written, and the next run succeeds."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import PartitionOptions
from glt_lightning.partition import partition_graph
from glt_lightning.partition.sources.folder import FolderSource
from tests.helpers import Run, run_script, started
from tests.helpers.family import settle
from tests.helpers.metis import stop_metis
from tests.helpers.partition_truth import read_folder

TIMEOUT_S = 60
ALGORITHMS = ("metis", "streaming")

# Partitions the folder `data` into `made/p`. A file `reached` says that METIS is at work; with a file `forever` it works
# until the process ends.
PARTITION = """
    import sys
    from pathlib import Path
    from glt_lightning.base import PartitionOptions
    from glt_lightning.partition import partition_graph
    from glt_lightning.kernels import MetisGraph
    from glt_lightning.partition.sources.folder import FolderSource

    cut = MetisGraph.cut
    def told(*args, **options):
        Path("reached").touch()
        while Path("forever").exists():
            cut(*args, **options)
        return cut(*args, **options)
    MetisGraph.cut = told

    algorithm = sys.argv[1]
    Path("started").touch()
    partition_graph(FolderSource(Path("data")), "made/p", PartitionOptions(num_parts=4, algorithm=algorithm))
"""

# The command line with the same.
COMMAND = """
    from glt_lightning.cli import main
    main(["partition", "--config", "config.yaml"])
"""

FULL = """
    import resource, sys
    from pathlib import Path
    from glt_lightning.base import PartitionError
    from glt_lightning.base import PartitionOptions
    from glt_lightning.partition import partition_graph
    from glt_lightning.partition.sources.folder import FolderSource

    for algorithm in ("metis", "streaming", "frequency"):
        for limit in (4_200, 100_000, 200_000):  # bytes of a file
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            options = PartitionOptions(num_parts=16, algorithm=algorithm, hotness="vip", memory_bytes=1 << 20)
            try:
                partition_graph(FolderSource(Path("data")), "made/p", options, progress=False)
            except PartitionError as error:
                no_room = "bytes needed" in str(error) and "free" in str(error)
                assert no_room or "bytes of shared memory" in str(error), error  # it has the limit of files, too
            else:
                raise AssertionError((algorithm, limit))
            assert list(Path("made").iterdir()) == [], (algorithm, limit)
"""


def save_graph(folder: Path, nodes: int, edges: int) -> None:
    """A random graph, the hardest to cut for its size."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    np.save(folder / "edge_index.npy", rng.integers(0, nodes, (2, edges)))
    np.save(folder / "x.npy", rng.random((nodes, 4), np.float32))
    np.save(folder / "y.npy", rng.integers(0, 3, nodes))
    np.save(folder / "train.npy", rng.permutation(nodes)[: nodes // 10])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def child(code: str, *args: str):
    env = {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])}
    return started([sys.executable, "-c", textwrap.dedent(code), *args], env=env, cwd=Path.cwd())


def wait_for(name: str, run: Run) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not Path(name).exists():
        assert run.popen.poll() is None, run.output
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end_in_metis(run: Run, number: int) -> int:
    """Sends the signal while METIS is at work and would never finish: whoever waited for it would wait for ever. Returns the
    exit status."""
    wait_for("reached", run)
    stop_metis(run.family, TIMEOUT_S)
    run.popen.send_signal(number)
    status = run.wait(TIMEOUT_S)
    assert settle(run.family, 10) == []
    return status


def succeeds_now(algorithm: str, folder: Path = Path("made/p")) -> None:
    partition_graph(FolderSource(Path("data")), folder, PartitionOptions(num_parts=4, algorithm=algorithm))
    read_folder(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_ctrl_c_in_metis() -> None:
    save_graph(Path("data"), 20_000, 200_000)
    Path("forever").touch()
    with child(PARTITION, "metis") as run:
        assert end_in_metis(run, signal.SIGINT) == -signal.SIGINT
        assert run.output.splitlines()[-1] == "KeyboardInterrupt"
    assert list(Path("made").iterdir()) == []


def test_termination_in_metis() -> None:
    """The signal's handler is that of who had it before, although METIS takes SIGTERM for itself."""
    save_graph(Path("data"), 20_000, 200_000)
    Path("forever").touch()
    with child(PARTITION, "metis") as run:
        assert end_in_metis(run, signal.SIGTERM) == -signal.SIGTERM
        assert "Traceback" not in run.output


@pytest.mark.slow
def test_command_line_in_metis() -> None:
    save_graph(Path("data"), 20_000, 200_000)
    Path("forever").touch()
    data = "{dataset: data, root: root, partition: {dir: made/p, num_parts: 4, algorithm: metis}}"
    Path("config.yaml").write_text(f"data: {{class_path: GLTDataModule, init_args: {data}}}\n")
    with child(PARTITION.partition("    algorithm =")[0] + COMMAND) as run:
        assert end_in_metis(run, signal.SIGTERM) == 130
        assert run.output.splitlines()[-1] == "interrupted; made/p: nothing is left of it."
        assert "Traceback" not in run.output
    assert list(Path("made").iterdir()) == []


@pytest.mark.diagonal(most=1)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_killed_at_any_moment(algorithm: str) -> None:
    save_graph(Path("data"), 20_000, 200_000)
    begin = time.monotonic()
    succeeds_now(algorithm, Path("first/p"))
    took = time.monotonic() - begin
    rng = np.random.default_rng(1)
    for share in rng.random(3):
        Path("started").unlink(missing_ok=True)
        with child(PARTITION, algorithm) as run:
            wait_for("started", run)
            time.sleep(share * took)
            run.popen.kill()
            run.wait(TIMEOUT_S)
        if Path("made/p").exists():  # killed as it ended: its lock may be there, which the next one who writes takes
            read_folder(Path("made/p"))
            shutil.rmtree("made/p")
    succeeds_now(algorithm)


def test_disk_full() -> None:
    save_graph(Path("data"), 20_000, 100_000)
    run_script(FULL, cwd=Path.cwd())
    for algorithm in ALGORITHMS:
        succeeds_now(algorithm, Path(algorithm, "p"))


@pytest.mark.slow
def test_termination_of_an_array_leaves_what_is_finished() -> None:
    """A scheduler ends its processes so, and the job goes on later."""
    save_graph(Path("data"), 20_000, 200_000)
    Path("forever").touch()
    partition = "{dir: made/p, num_parts: 4, algorithm: metis, engine: array, processes: 1}"
    data = f"{{dataset: data, root: root, partition: {partition}}}"
    Path("config.yaml").write_text(f"data: {{class_path: GLTDataModule, init_args: {data}}}\n")
    number = '    import os\n    os.environ["JOB_COMPLETION_INDEX"] = "0"\n'
    with child(number + PARTITION.partition("    algorithm =")[0] + COMMAND) as run:
        assert end_in_metis(run, signal.SIGTERM) == -signal.SIGTERM
    (left,) = (path for path in Path("made").iterdir() if path.is_dir())
    assert left.name.startswith(".p.tmp-run_")
    assert len([*(left / "ledger").iterdir()]) > 0
    options = PartitionOptions(num_parts=4, algorithm="metis")
    partition_graph(FolderSource(Path("data")), Path("made/p"), options)
    assert [path.name for path in Path("made").iterdir()] == ["p"]
