"""Files of launched jobs that a cluster starts: written to the folder of the run, or shown, or submitted."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from glt_lightning.base import OptionError
from glt_lightning.launch import (
    LaunchConfig,
    LaunchError,
    job_script,
    job_text,
    keeps_results,
    make_certificates,
    on_pods,
    secret_command,
)

_SUBMIT_S = 120.0


def write_job(config: LaunchConfig, run: str, flags: Mapping[str, bool]) -> int:
    """Writes what SLURM or Kubernetes is given, and says what to do with it. Returns a status.

    run: folder of the run.  flags: ``dry_run`` prints it instead, ``submit`` hands it to sbatch.
    Raises `OptionError` for what the engine cannot do, `LaunchError` if the job cannot be submitted.
    """
    is_slurm = config.engine == "slurm"
    if flags["submit"] and not is_slurm:
        raise OptionError("--submit: only for engine slurm. Apply the file of engine kubernetes with kubectl.")
    for name in ("check", "verify", "copy"):
        if flags[name]:
            raise OptionError(
                f"--{name}: only for engine ssh and here; nobody logs in to the hosts of {config.engine}."
            )
    text = job_script(config, run) if is_slurm else job_text(config)
    if flags["dry_run"]:
        print(text, end="")
        return 0
    path = Path(run, "job.sbatch" if is_slurm else "job.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if flags["submit"]:
        return _submit(path)
    for line in [f"sbatch {path}"] if is_slurm else _steps(config, path):
        print(line)
    return 0


def _steps(config: LaunchConfig, path: Path) -> list[str]:
    """The commands that start a job of Kubernetes."""
    lines = []
    if config.security.dir is not None:
        make_certificates(on_pods(config))
        lines.append(shlex.join(secret_command(config)))
    lines.append(f"kubectl apply -f {path}")
    if not keeps_results(config):
        lines.append(
            "# No volume has the folder of the run, so logs and checkpoints end with their pods. Set kubernetes.volumes, and "
            "defaults.dir below one of them."
        )
    return lines


def _submit(path: Path) -> int:
    if shutil.which("sbatch") is None:
        raise LaunchError(f"--submit: there is no sbatch on this host. Submit {path} where there is one.")
    try:
        return subprocess.run(["sbatch", str(path)], timeout=_SUBMIT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"--submit: sbatch did not end within {_SUBMIT_S:.0f} s. Look with squeue for the job."
        ) from None
