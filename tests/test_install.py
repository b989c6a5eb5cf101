"""What an installation adds to Python: a light package, ``python -m lightning``, and nothing to other programs."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import glt_lightning
from tests.helpers import started

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "lightning", "torch_geometric", "pandas", "scipy"}


def _output(argv: list[str | os.PathLike[str]], cwd: Path, limit_s: float = 240) -> str:
    """stdout and stderr of a program that must succeed, away from the checkout."""
    with started(argv, cwd=cwd) as run:
        assert run.wait(limit_s) == 0, run.output
        return run.output


def _imported_by(statement: str, cwd: Path) -> set[str]:
    code = f"{statement}\nimport json, sys; print(json.dumps(list(sys.modules)))"
    output = _output([sys.executable, "-c", code], cwd)
    return set(json.loads(output.splitlines()[-1]))


@pytest.fixture(scope="module")
def _installed() -> None:
    try:
        metadata.distribution("glt-lightning")
    except metadata.PackageNotFoundError:
        pytest.fail("glt-lightning is not installed here; run `make install`.", pytrace=False)


def test_package_root_is_light(tmp_path: Path) -> None:
    assert not _imported_by("import glt_lightning", tmp_path) & (HEAVY | {"numpy"})


def test_sampler_process_does_not_pay_for_torch(tmp_path: Path) -> None:
    modules = (
        "base",
        "kernels.khop",
        "graph.local_partition",
        "sampling.khop",
        "workers.slots",
        "workers.producer.worker",
    )
    imports = ", ".join(f"glt_lightning.{module}" for module in modules)
    assert not _imported_by(f"import {imports}", tmp_path) & HEAVY


def test_a_loader_does_not_pay_for_partitioning(tmp_path: Path) -> None:
    """A third of the CPU time of these imports; whoever samples has a partition."""
    found = _imported_by("from glt_lightning import Session", tmp_path)
    assert not [name for name in found if name.startswith("glt_lightning.partition")]


@pytest.mark.parametrize("name", glt_lightning.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(glt_lightning, name) is not None
    assert name in dir(glt_lightning)


@pytest.mark.parametrize(
    ("package", "some"),
    [
        ("compat.dgl", {"sampling", "to_block"}),
        ("compat.glt.data", {"Dataset", "Feature", "Graph"}),
        ("compat.glt.distributed", {"DistDataset"}),
        ("compat.glt.loader", {"NeighborLoader", "LinkNeighborLoader"}),
        ("compat.glt.partition", {"RandomPartitioner", "PartitionerBase"}),
        ("compat.glt.sampler", {"NeighborSampler", "NodeSamplerInput", "NegativeSampling"}),
        ("launch", {"LaunchConfig"}),
        ("loader", {"NeighborLoader", "LinkNeighborLoader", "LoaderSpec"}),
    ],
)
def test_a_star_and_dir_give_the_names_that_are_looked_up_late(package: str, some: set[str]) -> None:
    found: dict[str, object] = {}
    exec(f"from glt_lightning.{package} import *", found)
    module = importlib.import_module(f"glt_lightning.{package}")
    tree = ast.parse(Path(str(module.__file__)).read_text())
    late = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.If)
        for each in node.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert some | set(module.__all__) <= found.keys()
    assert some | late | set(module.__all__) <= set(dir(module))


def test_a_name_of_a_face_is_what_it_says_whatever_was_imported_before(tmp_path: Path) -> None:
    """A module may have another one by its own name: ``dgl.nn`` imports torch's ``nn``."""
    code = "import glt_lightning.compat.dgl as dgl; print(dgl.nn.__name__)"
    assert _output([sys.executable, "-c", code], tmp_path).splitlines()[-1] == "glt_lightning.compat.dgl.nn"
    package = Path(str(glt_lightning.__file__)).parent
    for init in package.rglob("__init__.py"):
        face = importlib.import_module(".".join(("glt_lightning", *init.relative_to(package).parts[:-1])))
        for name in getattr(face, "__all__", []):
            found = getattr(face, name)
            assert not inspect.ismodule(found) or found.__name__ == f"{face.__name__}.{name}"


def test_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="'glt_lightning' has no attribute 'nonsense'"):
        _ = glt_lightning.nonsense


@pytest.mark.usefixtures("_installed")
def test_other_programs_do_not_import_us(tmp_path: Path) -> None:
    ours = {name for name in _imported_by("pass", tmp_path) if "glt_lightning" in name and "editable" not in name}
    assert ours == set()


SCRIPT = Path(sys.executable).with_name("glt-lightning")


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("word", ["--version", "--help", "-h"])
@pytest.mark.parametrize("program", [("-m", "lightning"), ("-m", "glt_lightning"), (SCRIPT,)])
def test_versions_and_help_do_not_pay_for_torch(tmp_path: Path, program: tuple[str | Path, ...], word: str) -> None:
    output = _output([sys.executable, "-Ximporttime", *program, word], tmp_path)
    assert ("glt_lightning 0." if word == "--version" else "usage: python -m lightning") in output
    imported = {line.rpartition("|")[2].strip() for line in output.splitlines() if line.startswith("import time:")}
    assert "glt_lightning.base" in imported
    assert not imported & {"torch", "numpy", "lightning.pytorch"}


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    "question", [["--health", "127.0.0.1:1"], ["--status=127.0.0.1:1", "--cluster.deadlines.reconnect_s", "1"]]
)
def test_a_question_to_a_server_does_not_pay_for_torch(tmp_path: Path, question: list[str]) -> None:
    """Kubernetes asks for the health of each server every few seconds."""
    command = [sys.executable, "-Ximporttime", "-m", "lightning", "serve", *question]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "nothing listens at this address" in ended.stderr or "unrecognized arguments" in ended.stderr
    assert ended.returncode in (1, 2)
    imported = {
        line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if line.startswith("import time:")
    }
    assert "glt_lightning.cli.messages" in imported
    assert not imported & {"torch", "pandas", "lightning.pytorch", "scipy"}


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("words", "is_ours"),
    [
        (("-m", "lightning", "fit", "--help"), True),
        (("-u", "-W", "ignore", "-X", "dev", "-m", "lightning.__main__", "fit"), True),
        (("other.py", "-m", "lightning", "--version"), False),
        (("-c", "pass", "-m", "lightning"), False),
        (("-m", "pdb", "-m", "lightning"), False),
    ],
)
def test_only_our_program_begins_before_lightning_is_imported(
    tmp_path: Path, words: tuple[str, ...], is_ours: bool
) -> None:
    """Also where another program's words end as ours do."""
    code = f"""
import sys
sys.orig_argv = ["python", *{words}]
import _glt_lightning_boot as boot
sys.meta_path = [each for each in sys.meta_path if each is not boot.LightningMainFinder]  # the words above name Lightning
boot.install()
begins = boot.LightningShellFinder in sys.meta_path
if begins:
    import lightning  # which is empty
boot.reveal()
from importlib.util import find_spec
print(begins, "torch" in sys.modules, find_spec("lightning").origin, boot.LightningShellFinder in sys.meta_path)
"""
    begins, torch, real, stays = _output([sys.executable, "-c", code], tmp_path).split()
    assert (begins, torch, stays) == (str(is_ours), "False", "False")
    assert real.endswith("lightning/__init__.py")


@pytest.mark.slow
@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    "program", [("-m", "lightning"), ("-m", "lightning.__main__"), ("-m", "glt_lightning"), (SCRIPT,)]
)
def test_program_has_several_names(tmp_path: Path, program: tuple[str | Path, ...]) -> None:
    assert "usage: python -m lightning [options] fit" in _output([sys.executable, *program, "fit", "--help"], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_install_and_uninstall(tmp_path: Path, how: str) -> None:
    """In an environment of its own, without a network; the dependencies are borrowed from this one."""
    tree, python = tmp_path / "tree", tmp_path / "venv/bin/python"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    _output([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    site = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    # A path in a .pth file: modules are found there, but its own .pth files are not run.
    (site / "borrowed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    before = set(site.iterdir())

    def pip(command: str, *args: str | os.PathLike[str]) -> None:
        _output([python, "-m", "pip", command, *args], tmp_path, limit_s=900)  # compiles

    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    quick = ["--config-settings", "cmake.define.GLT_CUDA_ARCHITECTURES=90"]  # kernels for all devices take minutes
    if how == "wheel":
        pip("wheel", *offline, *quick, "-w", tmp_path / "dist", tree)
        (wheel,) = (tmp_path / "dist").iterdir()
        assert wheel.name.startswith(f"glt_lightning-{glt_lightning.__version__}-py3-none-")
        templates = ("slurm.sh.j2", "slurm-array.sh.j2", "kubernetes.yaml.j2")
        others = {*(f"launch/templates/{name}" for name in templates), "cli/demo.yaml"}
        with zipfile.ZipFile(wheel) as archive:
            assert {f"glt_lightning/{name}" for name in others} <= set(archive.namelist())
        pip("install", *offline, "--ignore-installed", wheel)
    else:
        pip("install", *offline, *quick, "--ignore-installed", "-e", tree)
    home = tree / "src" if how == "editable" else site
    page = "from glt_lightning.lightning.report.page import render; print(render('base.html', title='a page'))"
    assert "<h1>a page</h1>" in _output([python, "-c", page], tmp_path)  # the templates are there, too
    where = "import glt_lightning, os; print(os.path.realpath(glt_lightning.__file__))"
    assert _output([python, "-c", where], tmp_path).startswith(str(home.resolve()))
    assert "usage: python -m lightning" in _output([python, "-m", "lightning", "--help"], tmp_path)

    pip("uninstall", "--yes", "glt-lightning")
    # an editable install leaves an empty folder
    left = {path.name for path in set(site.iterdir()) - before if not path.is_dir() or any(path.iterdir())}
    assert left <= {"__pycache__"}
