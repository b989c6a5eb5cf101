# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # Hyperparameters: a sweep over one sampling service
#
# A graph server holds the graph and samples. Each trial of Optuna is a client of it: none opens the graph, or starts samplers.

# %%
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import optuna
from lightning.pytorch import Trainer, seed_everything

import glt_lightning as glt

ENVIRONMENT = dict(os.environ)  # Trainers of this process change its own
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
Path("secret").write_text("a word that only this job knows")
Path("secret").chmod(0o600)
Path("graph.yaml").write_text(f"""
data:
  class_path: glt_lightning.GLTDataModule
  init_args: {{dataset: demo, undirected: true, sampling: {{num_workers: 1}}}}
cluster: {{servers: ["{address}"], security: {{token_file: secret}}}}
""")
server = subprocess.Popen([sys.executable, "-m", "lightning", "serve", "--config", "graph.yaml"], env=ENVIRONMENT)


def ask(question: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lightning", "serve", question, address, "--cluster.security.token_file", "secret"]
    return subprocess.run([*command, *(["--json"] if question == "--status" else [])], capture_output=True, text=True)


while ask("--health").returncode and server.poll() is None:
    time.sleep(0.5)
assert server.poll() is None

# %%
optuna.logging.set_verbosity(optuna.logging.WARNING)


def accuracy(trial: optuna.Trial) -> float:
    seed_everything(0, verbose=False)
    fanout = trial.suggest_int("fanout", 2, 15)
    data = glt.GLTDataModule(
        "demo",
        undirected=True,
        num_neighbors=[fanout, fanout],
        batch_size=64,
        cluster=glt.ClusterOptions(servers=[address], security={"token_file": "secret"}),
    )
    model = glt.GraphSAGE(
        data.num_features,
        data.num_classes,
        num_layers=2,
        hidden_channels=trial.suggest_categorical("hidden_channels", [16, 32, 64]),
        lr=trial.suggest_float("lr", 1e-3, 3e-2, log=True),
    )
    trainer = Trainer(
        strategy="glt_server_client",
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    return float(trainer.callback_metrics["val_acc"])


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(accuracy, n_trials=6)
print(f"the best of {len(study.trials)} trials: {study.best_value:.3f} with {study.best_params}")
print(json.loads(ask("--status").stdout).keys())

# %%
server.terminate()
assert server.wait(60) == 0
assert study.best_value > 0.5
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.set(xlabel="trial", ylabel="validation accuracy", ylim=(0, 1))
axes.bar(range(1, 7), [trial.value for trial in study.trials])
plt.show()
