"""A sweep of hyper-parameters with Optuna: many fits after each other in one process, over one partition.

pip install optuna
python examples/sweep_with_optuna.py --trials 20
"""

from __future__ import annotations

import argparse

import optuna
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from glt_lightning import GLTDataModule, GraphSAGE


class Pruning(Callback):
    """Reports each epoch's accuracy and ends a trial that is worse than the others were. A fit that ends so, or by any other
    exception, ends its samplers and lets go of the graph."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self.trial.report(float(trainer.callback_metrics["val_acc"]), step=trainer.current_epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def accuracy(trial: optuna.Trial, max_epochs: int) -> float:
    seed_everything(42, workers=True, verbose=False)
    fanout = trial.suggest_int("fanout", 5, 20)
    data = GLTDataModule("demo", undirected=True, num_neighbors=[fanout, fanout], batch_size=64)
    model = GraphSAGE(
        data.num_features,
        data.num_classes,
        num_layers=2,
        hidden_channels=trial.suggest_categorical("hidden_channels", [32, 64, 128]),
        dropout=trial.suggest_float("dropout", 0.0, 0.6),
        lr=trial.suggest_float("lr", 1e-3, 3e-2, log=True),
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=max_epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Pruning(trial)],
    )
    trainer.fit(model, data)  # the first trial partitions the graph, the others find it
    return float(trainer.callback_metrics["val_acc"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--max-epochs", type=int, default=10)
    args = parser.parse_args()

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(lambda trial: accuracy(trial, args.max_epochs), n_trials=args.trials)
    print(f"the best of {len(study.trials)} trials: val_acc {study.best_value:.4f} with {study.best_params}")


if __name__ == "__main__":
    main()
