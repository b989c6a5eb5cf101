"""A sweep of Ray Tune whose trials share one graph server, beside trials that each start a server of their own.

python benchmarks/ray_sweep.py DATASET --trials 4 --epochs 3 --rounds 3

A line for each variant and round: wall and CPU seconds, and the highest memory (proportional set size), of the whole tree of
processes, Ray's own included; and a hash of the weights of each trial.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

PAUSE_S = 0.25
VARIANTS = ("shared", "own")


def make_data(config: dict[str, Any], **more: Any) -> Any:
    from glt_lightning import GLTDataModule

    return GLTDataModule(
        config["dataset"],
        config["root"],
        undirected=True,
        num_neighbors=[15, 10],
        batch_size=config["batch_size"],
        **more,
    )


def trial(config: dict[str, Any]) -> None:
    from lightning.pytorch import Trainer, seed_everything
    from ray import tune

    from glt_lightning import GraphSAGE
    from glt_lightning.lightning import ReportToRay, ray_worker

    with ray_worker(config["job"]) as worker:
        seed_everything(42, workers=True)
        data = make_data(config, cluster=worker.cluster)
        model = GraphSAGE(data.num_features, data.num_classes, hidden_channels=64, num_layers=2, lr=config["lr"])
        trainer = Trainer(
            strategy="glt_server_client",
            accelerator="cpu",
            max_epochs=config["epochs"],
            enable_checkpointing=False,
            enable_progress_bar=False,
            logger=False,
            callbacks=[ReportToRay()],
            **worker.trainer_options,
        )
        trainer.fit(model, data, ckpt_path=worker.checkpoint)
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()
    tune.report({"weights": digest})


def sweep(args: argparse.Namespace) -> None:
    import ray
    from ray import tune

    from glt_lightning.lightning import ray_job

    config = {name: getattr(args, name) for name in ("dataset", "root", "epochs", "batch_size")}
    ray.init(num_cpus=args.trials + 1, include_dashboard=False)
    with contextlib.ExitStack() as closing, tempfile.TemporaryDirectory() as storage:
        job = None
        if args.variant == "shared":
            job = closing.enter_context(ray_job(lambda node: node.serve(make_data(config)), servers=1))
        rates = [0.01 * (number + 1) for number in range(args.trials)]
        results = tune.Tuner(
            trial,
            param_space=config | {"job": job, "lr": tune.grid_search(rates)},
            run_config=tune.RunConfig(name="sweep", storage_path=storage),
        ).fit()
        if results.errors:
            raise results.errors[0]
        found = {f"{each.config['lr']:g}": each.metrics["weights"] for each in results}
    print(json.dumps({"weights": dict(sorted(found.items()))}), flush=True)


def measure(args: argparse.Namespace, variant: str) -> dict[str, Any]:
    """Runs one sweep in a process of its own, and watches its tree."""
    words = [args.dataset, "--root", args.root, "--trials", str(args.trials), "--epochs", str(args.epochs)]
    words += ["--batch-size", str(args.batch_size), "--variant", variant]
    cpu: dict[tuple[int, float], float] = {}
    peak, begin = 0, time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        child = psutil.Popen([sys.executable, __file__, *words], stdout=output, stderr=subprocess.STDOUT)
        while child.poll() is None:
            total = 0
            for each in [child, *_descendants(child)]:
                with contextlib.suppress(psutil.Error, OSError):
                    times = each.cpu_times()
                    cpu[each.pid, each.create_time()] = times.user + times.system
                    total += each.memory_full_info().pss
            peak = max(peak, total)
            time.sleep(PAUSE_S)
        output.seek(0)
        text = output.read()
    if child.returncode:
        sys.exit(text)
    wall = time.perf_counter() - begin
    found = next(json.loads(line) for line in text.splitlines() if line.startswith('{"weights"'))
    figures = {"variant": variant, "wall_s": round(wall, 1), "cpu_s": round(sum(cpu.values()), 1)}
    return figures | {"peak_mb": round(peak / 1e6)} | found


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default="demo")
    parser.add_argument("--root", default="data")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--variant", choices=VARIANTS, help="run this one alone, unmeasured")
    args = parser.parse_args()
    args.root = str(Path(args.root).absolute())
    if args.variant is not None:
        sweep(args)
        return
    make_data(vars(args)).prepare_data()
    for _ in range(args.rounds):
        for variant in VARIANTS:
            print(json.dumps(measure(args, variant)), flush=True)


if __name__ == "__main__":
    main()
