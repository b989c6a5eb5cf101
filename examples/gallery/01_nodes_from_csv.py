# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # From two CSV files to an endpoint
#
# A table of papers, and a table of who cites whom. Some papers have a field; we want the fields of the others, first as a file,
# then on request, also of papers that come later. It takes about 15 minutes to read and run.
#
# ## The tables
#
# Any CSV or Parquet files do: a row for each node with an id, and a row for each edge with the ids of its ends. Here are 600
# papers with three fields. `fold` says which papers the model learns from (`train`), which one chooses the best epoch by
# (`val`), and which nobody has looked at (`test`).

# %%
import csv
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow.parquet as pq

ENVIRONMENT = dict(os.environ)
rng = np.random.default_rng(0)
FIELDS = np.array(["biology", "chemistry", "physics"])
field = rng.integers(0, 3, 600)
near = [np.flatnonzero(field == each) for each in range(3)]

with open("papers.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["id", "field", "year", "fold", *(f"word_{w}" for w in range(8))])
    for paper in range(600):
        words = rng.normal(size=8) + 0.8 * (np.arange(8) == field[paper])
        fold = rng.choice(["train", "val", "test"], p=[0.3, 0.2, 0.5])
        rows.writerow([f"W{paper}", FIELDS[field[paper]], 1990 + paper % 30, fold, *words.round(3)])

with open("cites.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["citing", "cited"])
    for citing in rng.integers(0, 600, 3000):
        same = rng.random() < 0.8
        rows.writerow([f"W{citing}", f"W{rng.choice(near[field[citing]]) if same else rng.integers(600)}"])

# %% [markdown]
# ## The run
#
# One file says all of it. `dataset` names the columns as they stand in the tables: text ids are numbered, text labels become
# classes, and `encode: auto` makes features of what the columns hold. `num_neighbors` limits how many citations are followed from
# each paper, and from each of those, so that a batch stays small however large the tables are.

# %%
Path("papers.yaml").write_text("""
seed_everything: 0
trainer: {accelerator: cpu, max_epochs: 10, enable_progress_bar: false, enable_model_summary: false}
model:
  class_path: glt_lightning.NodePredictor
  init_args: {hidden_channels: 32, num_layers: 2, lr: 0.01, metrics: [acc]}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    dataset:
      nodes: {path: papers.csv, id: id, label: field, split: fold, features: [year, "word_*"], encode: auto}
      edges: {path: cites.csv, source: citing, destination: cited}
    undirected: true
    num_neighbors: [10, 10]
    batch_size: 64
""")


def lightning(words: str) -> str:
    command = [sys.executable, "-m", "lightning", *words.split()]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# %% [markdown]
# `fit` makes a partition folder of the tables, once, and trains. `test` takes the checkpoint with the best validation accuracy,
# and `predict` writes the classes of the test papers.

# %%
lightning("fit --config papers.yaml")
print(lightning("test --config papers.yaml --ckpt_path best"))
lightning("predict --config papers.yaml --ckpt_path best --data.evaluation.predict_split test")

# %% [markdown]
# ## Predictions
#
# They are Parquet files with the ids and the classes of the tables.

# %%
(folder,) = Path("lightning_logs").glob("*/predictions")  # of the run that wrote some
found = pq.read_table(folder).to_pandas()
print(found.head())
of_paper = {f"W{paper}": FIELDS[field[paper]] for paper in range(600)}
right = np.mean([of_paper[id] == kind for id, kind in zip(found["id"], found["class"], strict=True)])
print(f"{right:.3f} of the test papers have the right field")
assert right > 0.85

# %% [markdown]
# ## An endpoint
#
# `deploy` answers over HTTP; it needs `pip install 'glt-lightning[deploy]'`. Port 0 takes any free one, and the endpoint prints
# which. Without more words it listens to this machine alone.

# %%
command = [sys.executable, "-m", "lightning", "deploy", "--config", "papers.yaml", "--ckpt_path", "best", "--port", "0"]
endpoint = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
begun = ""
while not (found := re.search(r"endpoint: (http://\S+/predict)", begun)):
    line = endpoint.stdout.readline()
    assert line, begun
    begun += line
address = found[1]


def ask(question: dict) -> list[dict]:
    asked = urllib.request.Request(address, json.dumps(question).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)["predictions"]


for row in ask({"ids": ["W0", "W1"]}):
    print(row["id"], row["class"], row["probability"])

# %% [markdown]
# A paper that is in no table comes with its columns, and with its citations; it is not kept.

# %%
words = {f"word_{w}": 1.5 * (w == 2) for w in range(8)}
cites = [{"citing": "new", "cited": f"W{cited}"} for cited in near[2][:4]]
paper = {"id": "new", "year": 2024, **words}
(answer,) = ask({"nodes": {"node": [paper]}, "edges": {"node__to__node": cites}})
print(answer["class"], answer["probability"])
assert answer["class"] == "physics"
endpoint.terminate()
endpoint.wait(60)

# %% [markdown]
# What the model learned, and when.

# %%
with open("lightning_logs/version_0/metrics.csv") as file:
    curve = [float(row["val_acc"]) for row in csv.DictReader(file) if row.get("val_acc")]
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.set(xlabel="epoch", ylabel="validation accuracy", ylim=(0, 1))
axes.plot(range(1, len(curve) + 1), curve, marker="o")
plt.show()
