"""How the process of a command starts and ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jsonargparse import Namespace

START = """
import sys
sys.argv = ["glt-lightning", "fit"]
from glt_lightning.cli import command_process, without_collections
"""

_OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "PYTHONUNBUFFERED")
CLEAN = {name: value for name, value in os.environ.items() if name not in _OWN}


def _run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + code], env=CLEAN | env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["passive", "4000"]),
        ({"OMP_WAIT_POLICY": "active"}, ["active", "None"]),
        ({"OMP_WAIT_POLICY": "passive"}, ["passive", "None"]),
        ({"GOMP_SPINCOUNT": "0"}, ["passive", "0"]),
    ],
)
def test_threads_wait_as_the_user_says_else_asleep(given: dict[str, str], expected: list[str]) -> None:
    code = "import os\nwith command_process():\n    print(*map(os.environ.get, ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')))"
    ended = _run(code, **given)
    assert ended.stdout.split() == expected, ended.stderr


def test_ctrl_c_during_the_imports_ends_without_a_page() -> None:
    code = """
import signal
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "torch": signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder)
from glt_lightning.__main__ import main
main()
"""
    ended = _run(code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_ctrl_c_at_the_end_leaves_it_in_order() -> None:
    code = """
import gc, signal
seek = gc.get_objects
gc.get_objects = lambda: signal.raise_signal(signal.SIGINT) or seek()
with command_process():
    pass
"""
    ended = _run(code)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("end", "status"), [("pass", 0), ("sys.exit(3)", 3), ("sys.exit()", 0), ("sys.exit('why')", 1)]
)
def test_the_process_ends_with_its_status_and_all_that_was_written(end: str, status: int, tmp_path: Path) -> None:
    code = f"""
import atexit
class Slow:
    def __del__(self): print("taken apart")
with command_process():
    atexit.register(print, "handlers run")
    kept, raw = open({str(tmp_path / "text")!r}, "w"), open({str(tmp_path / "raw")!r}, "wb")
    slow = Slow()
    kept.write("all of it"); raw.write(b"bytes")
    {end}
"""
    ended = _run(code)
    assert ended.returncode == status, ended.stderr
    assert (tmp_path / "text").read_text() == "all of it"
    assert (tmp_path / "raw").read_bytes() == b"bytes"
    assert ended.stdout.splitlines() == ["handlers run"] + ["taken apart"] * (status == 1)
    assert ("why" in ended.stderr) == (status == 1)


def test_an_error_has_its_traceback_and_a_status() -> None:
    ended = _run("with command_process():\n    raise ValueError('unexpected')")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "unexpected" in ended.stderr


def test_what_was_registered_before_runs_as_well() -> None:
    ended = _run("import atexit\natexit.register(print, 'a tracer')\nwith command_process():\n    pass")
    assert (ended.returncode, ended.stdout.split("\n")[0]) == (0, "a tracer")


def test_the_program_itself_ends_at_once() -> None:
    """Nothing that it imports before has registered a function for the end."""
    code = """
import os, sys
end = os._exit
os._exit = lambda status: (print("at once", flush=True), end(status))
sys.argv[1:] = ["serve", "--health", "127.0.0.1:1"]
from glt_lightning.__main__ import main
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], env=CLEAN, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout.split()[-2:]) == (1, ["at", "once"]), ended.stderr


def test_a_reader_that_has_gone_is_a_status() -> None:
    code = START + "import time\nwith command_process():\n    time.sleep(1); print('x' * 10)"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", code], env=CLEAN, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 120  # Python's


def test_imports_are_not_looked_through_for_garbage() -> None:
    code = """
import gc
with without_collections():
    assert not gc.isenabled()
    import decimal
assert gc.isenabled() and gc.get_freeze_count() > 1000
gc.disable()
with without_collections():
    pass
print(gc.isenabled())
"""
    assert _run(code).stdout.split() == ["False"]


def test_imports_of_pyg_do_not_warn_of_torchscript() -> None:
    code = """
import warnings
with without_collections():
    warnings.warn("`torch.jit.script` is deprecated. Please switch to `torch.compile` or `torch.export`.", FutureWarning)
    warnings.warn("another", FutureWarning)
warnings.warn("`torch.jit.script` is used", FutureWarning)
"""
    said = _run(code).stderr
    assert "deprecated" not in said
    assert "another" in said
    assert "is used" in said


SIGNAL = """
with command_process():
    import scipy.signal
    assert "scipy.stats" not in sys.modules and hasattr(scipy.signal, "hamming")
    assert "scipy.signal.windows" not in sys.modules
    before = scipy.signal.hamming
    {use}
"""


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize(
    "use",
    [
        "from scipy.signal import convolve; print(convolve([1, 2], [1, 1]).tolist())",
        "print(scipy.signal.convolve([1, 2], [1, 1]).tolist())",
        "import scipy.signal.windows; from scipy.signal import *; print(convolve([1, 2], [1, 1]).tolist())",
        "import torchmetrics; assert 'scipy.stats' not in sys.modules; print(scipy.signal.convolve([1, 2], [1, 1]).tolist())",
    ],
)
def test_signal_processing_is_imported_when_it_is_used(use: str) -> None:
    ended = _run(SIGNAL.format(use=use))
    assert ended.stdout.split("\n")[0] == "[1, 3, 2]", ended.stderr


def test_the_late_module_becomes_the_real_one() -> None:
    use = """
    import numpy as np, types, threading
    assert np.allclose(before(5), scipy.signal.windows.hamming(5))
    found, name = [], "no_such_name"
    threads = [threading.Thread(target=lambda: found.append(scipy.signal.fftconvolve)) for _ in range(4)]
    for each in threads: each.start()
    for each in threads: each.join()
    assert found == [scipy.signal.fftconvolve] * 4 and type(scipy.signal) is types.ModuleType
    assert scipy.signal is sys.modules["scipy.signal"] and np.allclose(scipy.signal.hamming(5), before(5))
    try: scipy.signal.no_such_name
    except AttributeError as error: print(error)
    """
    ended = _run(SIGNAL.format(use=use.strip()))
    assert "has no attribute 'no_such_name'" in ended.stdout, ended.stderr


def test_data_sets_of_pyg_are_imported_when_they_are_used() -> None:
    ended = _run("""
with command_process():
    import torch_geometric
    assert not {"pandas", "torch_geometric.llm"} & set(sys.modules)
    from torch_geometric.datasets import Planetoid
    print(Planetoid.__name__, torch_geometric.datasets.KarateClub.__name__, "pandas" in sys.modules)
""")
    assert ended.stdout.split() == ["Planetoid", "KarateClub", "True"], ended.stderr


def test_s3_is_imported_when_it_is_used() -> None:
    """Lightning imports it to ask of a local folder whether it is one of S3."""
    pytest.importorskip("s3fs")
    ended = _run("""
with command_process():
    import fsspec
    from lightning.fabric.utilities.cloud_io import _is_object_storage
    local = _is_object_storage(fsspec.filesystem("file"))
    print(local, "botocore" in sys.modules, _is_object_storage(fsspec.filesystem("s3")), "botocore" in sys.modules)
""")
    assert ended.stdout.split() == ["False", "False", "True", "True"], ended.stderr


def test_the_compiler_of_torch_and_matplotlib_are_imported_when_they_are_used() -> None:
    ended = _run("""
with command_process():
    import torch, torchmetrics
    from lightning.fabric.wrappers import _unwrap_compiled
    from torch._dynamo import OptimizedModule
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.nn.parallel.DistributedDataParallel(model)(torch.ones(1, 2))
    from torch_geometric.nn import Linear
    print(*Linear(2, 2).state_dict(), torch.onnx.is_in_onnx_export())
    print(_unwrap_compiled(model)[0] is model, isinstance(model, OptimizedModule))
    print({"matplotlib", "torch._dynamo.utils", "torch.onnx.ops", "sympy"} & set(sys.modules) or "none")
    from torch.onnx.errors import OnnxExporterError
    print(torch.onnx.OnnxExporterError is OnnxExporterError, torch.onnx.is_in_onnx_export.__module__)
    print(torch._dynamo.trace_rules.LEGACY_MOD_INLINELIST is sys.modules["torch._dynamo.trace_rules"].LEGACY_MOD_INLINELIST)
    compiled = torch.compile(model, backend="eager")
    optimizer.zero_grad()
    print(bool(compiled(torch.ones(1, 2)) == model(torch.ones(1, 2))), isinstance(compiled, OptimizedModule))
    optimizer.step()
    class Own(OptimizedModule): pass
    import torch._dynamo.utils
    print(Own.__mro__[1] is torch._dynamo.OptimizedModule, type(torch._dynamo).__name__, torch._dynamo.utils.__spec__.loader)
    metric = torchmetrics.MeanMetric()
    metric.update(1.0)
    print(type(metric.plot()[0]).__name__, "matplotlib" in sys.modules)
""")
    *first, names, plotted = ended.stdout.splitlines()
    assert first == ["weight bias False", "True False", "none", "True torch.onnx", "True", "True True"], ended.stderr
    assert re.fullmatch("True module <.*SourceFileLoader.*", names)
    assert plotted == "Figure True"


def test_a_part_of_the_compiler_is_imported_after_it() -> None:
    ended = _run("""
with command_process():
    import torch._dynamo
    from torch._dynamo.utils import counters
    print(torch._dynamo.utils.counters is counters, sys.modules["torch._dynamo.utils"] is torch._dynamo.utils)
    print(type(torch._dynamo).__name__, torch._dynamo.disable.__module__, torch._dynamo.utils.__spec__.loader)
""")
    assert ended.stdout.startswith("True True\nmodule torch._dynamo.decorators <"), ended.stderr
    assert "SourceFileLoader" in ended.stdout


@pytest.mark.parametrize(
    "use",
    [
        "torch.nn.Conv2d(3, 4, 3, device='meta')(ones.to('meta'))",
        "torch.compile(torch.nn.Conv2d(3, 4, 3), backend='aot_eager', dynamic=True)(ones)",
        pytest.param("torch._dynamo.optimize('eager')(torch.nn.Conv2d(3, 4, 3))(ones)", marks=pytest.mark.slow),
        pytest.param(
            "FakeTensorMode().from_tensor(ones).sum(1, keepdim=True).expand(1, 4, 8, 8)[..., 2:, 2:]",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_compiler_is_read_from_wherever_it_is_used(use: str) -> None:
    ended = _run(f"""
with command_process():
    import torch
    import torch._dynamo
    from torch._subclasses.fake_tensor import FakeTensorMode
    ones = torch.ones(1, 3, 8, 8)
    print(*({use}).shape)
""")
    assert ended.stdout == "1 4 6 6\n", ended.stderr


def test_a_newer_torch_is_imported_as_it_says() -> None:
    ended = _run("""
from glt_lightning.cli import process
process._NEWEST_TORCH = 2, 5
with command_process():
    import torch.distributions
    print(type(torch.distributions).__name__)
""")
    assert ended.stdout == "module\n", ended.stderr


def test_quantization_and_distributions_are_imported_when_they_are_used() -> None:
    ended = _run("""
with command_process():
    import torch
    print({"torch.ao.quantization", "torch.distributions.normal"} & set(sys.modules) or "none")
    from torch.distributions.normal import Normal
    import torch.nn.quantized.dynamic
    print(torch.distributions.Normal is Normal, torch.nn.quantized.dynamic.Linear.__name__, torch.nn.qat.Linear.__name__)
    print(torch.quantization.QConfig is torch.ao.quantization.QConfig)
""")
    assert ended.stdout.split("\n")[:3] == ["none", "True Linear Linear", "True"], ended.stderr


_UNUSED = (
    *("torch.ao.quantization", "torch.distributions.normal"),
    *(f"glt_lightning.{name}" for name in ("partition.run", "partition.tasks.job", "partition.sources.tables.files")),
    *("pyarrow", "glt_lightning.lightning.planner.expected"),
    *(f"glt_lightning.{name}" for name in ("lightning.new_rows", "lightning.endpoint.compute", "inference.run")),
)


def test_a_fit_imports_nothing_that_makes_partitions_or_comes_after_training(tmp_path: Path) -> None:
    rng, ids = np.random.default_rng(0), np.arange(40)
    arrays = {"x": rng.random((40, 4), dtype=np.float32), "y": ids % 2, "edge_index": rng.integers(0, 40, (2, 200))}
    np.savez(tmp_path / "graph.npz", **arrays, train_idx=ids[:20], valid_idx=ids[20:30], test_idx=ids[30:])
    options = [
        *("--model", "glt_lightning.GraphSAGE", "--model.hidden_channels=8", "--data", "glt_lightning.GLTDataModule"),
        *(
            "--data.dataset=demo",
            "--data.num_neighbors=[2,2]",
            "--trainer.fast_dev_run=true",
            "--trainer.accelerator=cpu",
        ),
    ]
    code = f"""
with command_process():
    from glt_lightning.cli import main
    main(["fit", *{options!r}])
    print("imported:", *sorted({{*{_UNUSED!r}}} & set(sys.modules)))
"""
    code = "import os\nos.chdir(" + repr(str(tmp_path)) + ")\n" + code
    first, second = _run(code), _run(code)  # the first makes the partition
    assert "imported: glt_lightning.partition.run" in first.stdout, first.stderr
    assert second.stdout.splitlines()[-1].split() == ["imported:"], second.stderr


@pytest.mark.parametrize(
    ("workers", "strategy", "expected"), [(2, "auto", 2), (0, "ddp", 0), (2, "glt_server_client", 0)]
)
def test_samplers_start_while_the_trainer_is_made(workers: int, strategy: str, expected: int) -> None:
    from glt_lightning.cli.subcommands import num_samplers

    given = {"data.init_args.sampling.num_workers": workers, "trainer.strategy": strategy}
    assert num_samplers(Namespace(given)) == expected
    assert num_samplers(Namespace({"trainer.strategy": strategy})) == 0


_RANK = """
import sys
import torch.distributed as dist
from glt_lightning.cli import main
rank, file = int(sys.argv[1]), sys.argv[2]
store = dist.TCPStore("127.0.0.1", int(sys.argv[3]), 2, rank == 0, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
print("joined", flush=True)
sys.stdin.readline()
main(["fit", "--model=glt_lightning.GraphSAGE", "--data=glt_lightning.GLTDataModule", f"--data.dataset={file}"])
"""


@pytest.mark.slow
def test_an_error_ends_a_rank_whose_store_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(_RANK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    missing = str(tmp_path / "missing")
    both = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "rank.py"), str(rank), missing, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for rank in range(2)
    ]
    try:
        assert [each.stdout.readline() for each in both if each.stdout] == ["joined\n"] * 2
        both[0].send_signal(signal.SIGSTOP)
        _, said = both[1].communicate("\n", timeout=60)
        assert both[1].returncode == 1, said
        assert said.count("error: ") == 1, said
        assert missing in said
    finally:
        for each in both:
            each.kill()
            each.communicate()
