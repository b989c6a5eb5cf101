"""Training on a Ray cluster: the workers of Ray Train are the ranks, and a lost one costs the steps since the last report.

python examples/ray_train.py                      # the demo graph, two workers of a cluster on this host
python examples/ray_train.py --servers 1          # the same batches, from a graph server
python examples/ray_train.py --address auto       # the cluster that this host is in (docs/ray.md)
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray
from lightning.pytorch import Trainer, seed_everything
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from glt_lightning import GLTDataModule, GraphSAGE
from glt_lightning.lightning import ReportToRay, ray_job, ray_worker


def make_data(config: dict[str, Any], **more: Any) -> GLTDataModule:
    return GLTDataModule(
        config["dataset"], config["root"], undirected=True, num_neighbors=[15, 10], batch_size=64, **more
    )


def train(config: dict[str, Any]) -> None:
    with ray_worker(config["job"]) as worker:
        seed_everything(42, workers=True)
        data = make_data(config, cluster=worker.cluster)
        model = GraphSAGE(data.num_features, data.num_classes, hidden_channels=64, num_layers=2, lr=0.01)
        trainer = Trainer(
            strategy="glt_server_client" if worker.cluster.servers else "glt_worker",
            accelerator="cpu",
            max_epochs=config["max_epochs"],
            enable_checkpointing=False,
            enable_progress_bar=False,
            logger=False,
            callbacks=[ReportToRay(every_n_steps=2)],
            **worker.trainer_options,
        )
        trainer.fit(model, data, ckpt_path=worker.checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="demo")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=0, help="Graph servers, each on a node of its own.")
    parser.add_argument("--max-epochs", type=int, default=4)
    parser.add_argument("--address", default=None)
    parser.add_argument("--storage", default="ray-results", help="A folder or URL that all nodes share.")
    args = parser.parse_args()

    ray.init(args.address, **({} if args.address else {"num_cpus": args.workers + args.servers}))
    storage = args.storage if "://" in args.storage else str(Path(args.storage).absolute())
    config = {"dataset": args.dataset, "root": str(Path("data").absolute()), "max_epochs": args.max_epochs}
    with ray_job(lambda node: node.serve(make_data(config)), args.servers) as job:
        result = TorchTrainer(
            train,
            train_loop_config=config | {"job": job},
            scaling_config=ScalingConfig(num_workers=args.workers),
            run_config=RunConfig(
                name="glt",
                storage_path=storage,
                failure_config=FailureConfig(max_failures=3),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
            ),
        ).fit()
    print(f"checkpoint: {result.checkpoint.path}; {result.metrics}")


if __name__ == "__main__":
    main()
