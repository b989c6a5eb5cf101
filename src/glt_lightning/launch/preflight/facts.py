"""What a host is like: ``python -m glt_lightning.launch.preflight.facts``, with a question as JSON on stdin.

Facts alone: whether they will do is for `preflight.verdict`, which sees those of all hosts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from glt_lightning import __version__
from glt_lightning.cluster.placement import placed_parts
from glt_lightning.data.arrays import check_header, verify_array
from glt_lightning.data.manifest import MANIFEST, Manifest
from glt_lightning.data.same_partition import files_hash
from glt_lightning.errors import GLTError
from glt_lightning.launch.memory import available_memory
from glt_lightning.partition.copies.pull import wanted_files
from glt_lightning.transport.base import PROTOCOL
from glt_lightning.transport.certs import describe_certificate

_NVIDIA_SMI_S = 20.0


def main() -> None:
    """Answers the question."""
    sys.path.insert(0, os.getcwd())  # as for the job
    print(json.dumps(facts(json.load(sys.stdin))))


def facts(asked: Mapping[str, Any]) -> dict[str, Any]:
    """asked: modules and script of the command; folder of the partition, and the slots, of how many, whose parts are here;
    verify; security; gpus."""
    return {
        "versions": _versions(),
        "missing_modules": [name for name in asked["modules"] if not _importable(name)],
        "missing_script": asked["script"] is not None and not Path(asked["script"]).is_file(),
        "partition": None if asked["folder"] is None else _partition(asked),
        "certificate": describe_certificate(asked["security"]) if asked["security"].get("ca") else None,
        "now": time.time(),
        "free_bytes": shutil.disk_usage(_existing(Path(asked["folder"] or "."))).free,
        "memory_bytes": available_memory(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "interfaces": [name for _, name in socket.if_nameindex()],
        "gpus": _gpus() if asked["gpus"] else None,
    }


def _versions() -> dict[str, str]:
    found = {"Python": ".".join(platform.python_version_tuple()[:2]), "glt_lightning": __version__}
    for name in ("torch", "lightning"):
        try:
            found[name] = version(name).partition("+")[0]  # +cpu, +cu124: the same release
        except PackageNotFoundError:
            found[name] = "none"
    return found | {"wire protocol": str(PROTOCOL)}


def _importable(name: str) -> bool:
    with suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


def _partition(asked: Mapping[str, Any]) -> dict[str, Any]:
    folder = Path(asked["folder"])
    if not (folder / MANIFEST).is_file():
        return {"error": f"{folder}: this folder holds no partition"}
    try:
        manifest = Manifest.load(folder)
        parts = sorted({p for slot in asked["slots"] for p in placed_parts(slot, asked["of"], manifest.num_parts)})
        wanted = wanted_files(manifest, parts)
        absent = [path for path in wanted if not (folder / path).exists()]
        for path, entry in wanted.items():
            if path not in absent:
                (verify_array if asked["verify"] else check_header)(folder, path, entry)
    except (GLTError, OSError) as error:
        return {"error": str(error)}
    return {
        "options_hash": manifest.options_hash,
        "hashes": files_hash(manifest),
        "parts": parts,
        "absent": absent[:3],
        "absent_parts": sorted({path.split("/")[0] for path in absent}),
        "absent_bytes": sum(wanted[path].bytes for path in absent),
        "bytes": sum(entry.bytes for entry in wanted.values()),
    }


def _existing(path: Path) -> Path:
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def _gpus() -> list[list[int]] | str:
    """(number, bytes in use) of each GPU; else why there are none."""
    argv = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_NVIDIA_SMI_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {getattr(error, 'strerror', None) or error}"
    if done.returncode:
        return f"nvidia-smi: {(done.stderr or done.stdout).strip()[:200]}"
    rows = [line.split(",") for line in done.stdout.splitlines() if line.strip()]
    return [[int(number), int(used) << 20] for number, used in rows]


if __name__ == "__main__":
    main()
