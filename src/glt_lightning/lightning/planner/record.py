"""Probes of configurations, kept beside the partition that they are about."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule
from torch import nn

from glt_lightning.base import SamplingOptions
from glt_lightning.lightning.planner import record_path
from glt_lightning.lightning.planner.probe import Probe, machine_name
from glt_lightning.partition import whole_file

if TYPE_CHECKING:
    from glt_lightning.lightning.datamodule import GLTDataModule

_log = logging.getLogger(__name__)
_VERSION = 8
_FRESH = timedelta(days=30)
_MOST = 20  # probes of a partition
_NO_COST = (
    "num_workers",
    "concurrency",
    "worker_devices",
    "prefetch",
    "channel_size",
    "seed",
    "max_restarts",
    "timeout_s",
    "pin_memory",
)


def probe_key(
    graph: str, data: GLTDataModule, module: LightningModule, precision: object, threads: int, strategy: str | None
) -> str:
    """What a probe depends on, as one text: the machine, the versions, the graph, the batches and the model. Another number of
    hosts, ranks or sampler processes is the same probe.

    graph: ``options_hash`` of the partition.  threads: of torch, in a rank.  strategy: as in `measure`.
    """
    sampling = {f.name: getattr(data.sampling, f.name) for f in fields(SamplingOptions) if f.name not in _NO_COST}
    identity: dict[str, Any] = {
        "machine": machine_name(),
        "versions": [version(name) for name in ("glt-lightning", "lightning", "torch", "torch_geometric")],
        "graph": graph,
        "batches": [data.num_neighbors, data.batch_size, sampling, asdict(data.batches), asdict(data.evaluation)],
        "seeds": [str(data.seeds), str(data.links)],
        "model": [type(module).__qualname__, [(name, _shape(p)) for name, p in module.named_parameters()]],
        "step": [str(precision), threads],
        "strategy": strategy,
    }
    return hashlib.sha256(json.dumps(identity, default=str, sort_keys=True).encode()).hexdigest()[:32]


def _shape(parameter: nn.Parameter) -> list[int] | None:
    return None if isinstance(parameter, nn.UninitializedParameter) else list(parameter.shape)


def find_probe(partition_dir: Path, key: str) -> Probe | None:
    """The probe of a key, if there is one that is not too old."""
    raw = _read(record_path(partition_dir)).get(key)
    if raw is None:
        return None
    try:
        probe = Probe.from_json(raw)
        age = datetime.now(UTC) - datetime.fromisoformat(probe.made)
    except (TypeError, KeyError, ValueError, AttributeError):
        _log.info("%s: a probe in it cannot be read, and is left out.", record_path(partition_dir))
        return None
    return probe if age < _FRESH else None


def keep_probe(partition_dir: Path, key: str, probe: Probe) -> None:
    """Writes a probe, in place of an earlier one of its key. A folder that cannot be written is a line in the log."""
    path = record_path(partition_dir)
    known = _read(path)
    known.pop(key, None)
    known[key] = probe.to_json()
    text = json.dumps({"version": _VERSION, "probes": dict(list(known.items())[-_MOST:])}, indent=1)
    try:
        with whole_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        _log.info("%s: the probe is not kept (%s); the next plan measures again.", path, error.strerror or error)


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    except ValueError:
        _log.info("%s: is no JSON, and is written anew.", path)
        return {}
    probes = raw.get("probes") if isinstance(raw, dict) and raw.get("version") == _VERSION else None
    return probes if isinstance(probes, dict) else {}
