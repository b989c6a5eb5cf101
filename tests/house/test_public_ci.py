"""The public workflows, forms and hooks: they are valid, they pin what they use, and what they run is there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_schema
from click.testing import CliRunner

import glt_lightning

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.github-issue-forms": sorted(
        set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"}
    ),
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in read(path)["jobs"].items():
            yield from ((f"{path.name}: {name}", step) for step in job.get("steps", []))


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    return ran("zizmor", "--offline", "--no-progress", path)


def ran(tool: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name(tool), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_have_the_form_that_the_service_expects(schema: str) -> None:
    assert SCHEMAS[schema]
    ended = CliRunner().invoke(check_schema, ["--builtin-schema", schema, *map(str, SCHEMAS[schema])])
    assert ended.exit_code == 0, ended.output


def test_a_linter_finds_nothing(tmp_path: Path) -> None:
    ended = lint(GITHUB)
    assert ended.returncode == 0, ended.stdout
    (tmp_path / "bad.yml").write_text(
        "on: push\njobs: {a: {runs-on: x, steps: [{run: 'echo ${{ github.event.issue.title }}'}]}}\n"
    )
    assert lint(tmp_path / "bad.yml").returncode != 0


def test_actions_are_pinned_and_may_do_little() -> None:
    used = [step["uses"] for _, step in steps() if "uses" in step]
    assert len(used) > 10
    assert [each for each in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", each)] == []
    for path in WORKFLOWS:
        assert read(path)["permissions"] == {"contents": "read"}, path.name


def test_what_they_run_is_there() -> None:
    """Lines are valid in a shell; targets of make, scripts and requirements exist."""
    ran = [(where, step["run"]) for where, step in steps() if "run" in step]
    assert len(ran) > 10
    for where, text in ran:
        checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert not checked.stderr, f"{where}: {checked.stderr}"
        for path in re.findall(r"(?<![\w/])((?:packaging|\.githooks)/[\w.-]+)", text):
            assert (ROOT / path).exists(), f"{where}: there is no {path}"
        for target in re.findall(r"\bmake ([a-z][\w-]*)", text):
            dry = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
            assert dry.returncode == 0, f"{where}: {dry.stderr}"
    for target in read(GITHUB / "workflows/nightly.yml")["jobs"]["slow"]["strategy"]["matrix"]["target"]:
        assert f"\n{target}: " in (ROOT / "Makefile").read_text()


def test_hooks_are_those_of_make_lint() -> None:
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    recipe = re.search(r"^lint: install\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert recipe is not None
    lint = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    assert [hook["entry"] for hook in local["hooks"]] == [*lint, ".githooks/commit-msg"]


def test_notes_of_a_release() -> None:
    notes = script("release_notes").release_notes
    version, log = (
        '__version__ = "0.2.0"\n',
        "# Changelog\n\n## Unreleased\n\n- d\n\n## 0.2.0 - 2026-12-01\n\n- b\n\n## 0.1.0\n- a\n",
    )
    assert notes("v0.2.0", version, log) == "- b\n"
    with pytest.raises(
        ValueError, match=r"the tag is v0\.3\.0, and the package has version 0\.2\.0; expected v0\.2\.0"
    ):
        notes("v0.3.0", version, log)
    with pytest.raises(ValueError, match=r"no notes below `## 0\.2\.0`; give `## Unreleased` this name"):
        notes("v0.2.0", version, log.replace("- b", ""))
    ended = subprocess.run(
        [sys.executable, ROOT / "packaging/release_notes.py", "v9"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert f"expected v{glt_lightning.__version__}" in ended.stderr


def test_the_builds_of_wheels_agree() -> None:
    """Those in containers, by cibuildwheel, and those of `make wheels`: glibc, processors and options."""
    build = script("build_wheels")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    tag = f"manylinux_{'_'.join(map(str, build.GLIBC))}"
    assert {settings[f"manylinux-{each}-image"] for each in build.ARCHITECTURES} == {tag}
    assert settings["config-settings"]["cmake.define.GLT_CUDA"] == "OFF"
    cuda = tomllib.loads((ROOT / "packaging/cuda/pyproject.toml").read_text())
    assert cuda["tool"]["cibuildwheel"]["manylinux-x86_64-image"] == tag
    assert cuda["tool"]["scikit-build"]["cmake"]["define"]["GLT_HOST"] == "OFF"
    options = (ROOT / "CMakeLists.txt").read_text()
    assert [name for name in cuda["tool"]["scikit-build"]["cmake"]["define"] if name not in options] == []
    version = (ROOT / "packaging/cuda" / cuda["tool"]["scikit-build"]["metadata"]["version"]["input"]).resolve()
    assert version == ROOT / "src/glt_lightning/base/version.py"
    runners = read(GITHUB / "workflows/wheels.yml")["jobs"]["wheel"]["strategy"]["matrix"]["runner"]
    assert len(runners) == len(build.ARCHITECTURES)


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["deploy"]
    bounds = [re.sub(r"\[.*\]|,<.*", "", each).replace(">=", "==") for each in needed]
    assert (ROOT / "packaging/oldest.constraints").read_text().splitlines()[1:] == bounds


def test_images_have_no_root_and_copy_what_there_is() -> None:
    ended = ran("hadolint", ROOT / "Dockerfile")
    assert ended.returncode == 0, ended.stdout
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.M)[1:]
    made = {stage.split()[2]: stage for stage in stages}
    assert all(re.findall(r"^USER (.+)$", made[name], re.M) == ["1000"] for name in ("cpu", "cuda"))
    assert not re.search(r"FROM \S+:latest|FROM [^:\s]+$", (ROOT / "Dockerfile").read_text(), re.M)
    needed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert [name for name in needed if not (ROOT / name).exists()] == []
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {build["project"]["readme"], *build["project"]["license-files"], "src", "cuda", "CMakeLists.txt"} <= needed
