"""Training from a script: the data module, the ready GraphSAGE and Lightning's Trainer.

python examples/train_in_a_script.py                      # the demo graph, one process
python examples/train_in_a_script.py --devices 2          # two ranks that share the mapped graph
python examples/train_in_a_script.py --dataset graph.npz  # your own
"""

from __future__ import annotations

import argparse

from lightning.pytorch import Trainer, seed_everything

from glt_lightning import GLTDataModule, GraphSAGE, SamplingOptions
from glt_lightning.lightning import BestCheckpoint, SamplingMonitor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="demo")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--max-epochs", type=int, default=20)
    args = parser.parse_args()

    seed_everything(42, workers=True)
    data = GLTDataModule(
        args.dataset,
        undirected=True,
        num_neighbors=[15, 10],
        batch_size=64,
        sampling=SamplingOptions(num_workers=2),
    )
    model = GraphSAGE(data.num_features, data.num_classes, hidden_channels=128, num_layers=2, lr=0.01)
    trainer = Trainer(
        strategy="glt_worker",
        accelerator="cpu",
        devices=args.devices,
        max_epochs=args.max_epochs,
        callbacks=[BestCheckpoint(), SamplingMonitor()],
        log_every_n_steps=1,
    )
    trainer.fit(model, data)
    trainer.test(model, data, ckpt_path="best")


if __name__ == "__main__":  # with several devices, each rank runs this file
    main()
