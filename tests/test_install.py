"""What an installation adds to Python: a light package, ``python -m lightning``, and nothing to other programs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import glt_lightning
from tests.helpers import run_cli, started

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "lightning", "torch_geometric", "pandas", "scipy"}


def _python(*args: str, cwd: Path) -> str:
    """stdout and stderr of a fresh Python, away from the checkout."""
    with started([sys.executable, *args], cwd=cwd) as run:
        assert run.wait(60) == 0, run.output
        return run.output


def _imported_by(statement: str, cwd: Path) -> set[str]:
    output = _python("-c", f"{statement}\nimport json, sys; print(json.dumps(list(sys.modules)))", cwd=cwd)
    return set(json.loads(output.splitlines()[-1]))


@pytest.fixture(scope="module")
def _installed() -> None:
    try:
        metadata.distribution("glt-lightning")
    except metadata.PackageNotFoundError:
        pytest.fail("glt-lightning is not installed here; run `make install`.", pytrace=False)


def test_package_root_is_light(tmp_path: Path) -> None:
    assert not _imported_by("import glt_lightning", tmp_path) & (HEAVY | {"numpy"})


@pytest.mark.parametrize("module", ["options", "ops", "data", "sampler", "channel", "producer", "producer.worker"])
def test_sampler_process_does_not_pay_for_torch(tmp_path: Path, module: str) -> None:
    assert not _imported_by(f"import glt_lightning.{module}", tmp_path) & HEAVY


@pytest.mark.parametrize("name", glt_lightning.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(glt_lightning, name) is not None
    assert name in dir(glt_lightning)


def test_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="'glt_lightning' has no attribute 'nonsense'"):
        _ = glt_lightning.nonsense


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(glt_lightning.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {(alias.asname, node.module) for node in guarded.body for alias in node.names}
    assert seen == set(glt_lightning._HOMES.items())


@pytest.mark.usefixtures("_installed")
def test_other_programs_do_not_import_us(tmp_path: Path) -> None:
    ours = {name for name in _imported_by("pass", tmp_path) if "glt_lightning" in name and "editable" not in name}
    assert ours == set()


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("program", [("-m", "lightning"), ("-m", "lightning.__main__"), ("-m", "glt_lightning")])
def test_help_is_ours(tmp_path: Path, program: tuple[str, ...]) -> None:
    output = _python(*program, "--help", cwd=tmp_path)
    assert "usage: python -m lightning" in output
    for subcommand in ("fit", "validate", "test", "predict"):
        assert subcommand in output


@pytest.mark.usefixtures("_installed")
def test_script_is_the_same_program(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("glt-lightning")
    with started([script, "--help"], cwd=tmp_path) as run:
        assert run.wait(60) == 0, run.output
        assert run.output == run_cli("--help", cwd=tmp_path).stdout


@pytest.mark.slow
@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_install_and_uninstall(tmp_path: Path, how: str) -> None:
    """In an environment of its own, without a network; the dependencies are borrowed from this one."""
    tree = tmp_path / "tree"
    _pip = [tmp_path / "venv/bin/python", "-m", "pip"]
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    site = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    # A path in a .pth file: modules are found there, but its own .pth files are not run.
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    before = set(site.iterdir())

    install = ["install", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
    if how == "wheel":
        _run([*_pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", tmp_path / "dist", tree])
        (wheel,) = (tmp_path / "dist").iterdir()
        assert wheel.name.startswith(f"glt_lightning-{glt_lightning.__version__}-py3-none-")
        _run([*_pip, *install, wheel])
    else:
        _run([*_pip, *install, "-e", tree])
    where = "import glt_lightning, os; print(os.path.realpath(glt_lightning.__file__))"
    home = tree / "src" if how == "editable" else site
    assert _run([tmp_path / "venv/bin/python", "-c", where], cwd=tmp_path).strip().startswith(str(home.resolve()))
    assert "usage: python -m lightning" in _run(
        [tmp_path / "venv/bin/python", "-m", "lightning", "--help"], cwd=tmp_path
    )

    _run([*_pip, "uninstall", "--yes", "glt-lightning"])
    left = {path for path in set(site.iterdir()) - before if not (path.is_dir() and not any(path.iterdir()))}
    assert {path.name for path in left} <= {"__pycache__"}


def _run(argv: list[str | os.PathLike[str]], cwd: Path | None = None) -> str:
    with started(argv, cwd=cwd) as run:
        assert run.wait(240) == 0, run.output
        return run.output
