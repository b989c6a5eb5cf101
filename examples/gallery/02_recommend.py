# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # Links, and what to recommend
#
# Who bought what. A model of links scores each user with each item; `recommend` lists the best items that a user does not have.

# %%
import csv
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow.parquet as pq

ENVIRONMENT = dict(os.environ)
USERS, ITEMS, TASTES = 400, 200, 5
rng = np.random.default_rng(0)
taste, kind = rng.integers(0, TASTES, USERS), rng.integers(0, TASTES, ITEMS)
user = rng.integers(0, USERS, 12_000)
item = rng.integers(0, ITEMS, len(user))
liked = (taste[user] == kind[item]) | (rng.random(len(user)) < 0.05)
bought = np.unique(np.stack([user, item])[:, liked], axis=1)
print(f"{bought.shape[1]} purchases")

# %%
with open("buys.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["user", "item"])
    rows.writerows((f"user {u}", f"item {i}") for u, i in bought.T)
for name, of in (("user", taste), ("item", kind)):
    hints = rng.normal(size=(len(of), TASTES)) + 1.5 * (np.arange(TASTES) == of[:, None])  # what is known of each
    with open(f"{name}s.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", *(f"hint_{each}" for each in range(TASTES))])
        rows.writerows([f"{name} {number}", *values.round(3)] for number, values in enumerate(hints))
Path("shop.yaml").write_text("""
seed_everything: 0
trainer: {accelerator: cpu, max_epochs: 8, enable_progress_bar: false, enable_model_summary: false}
model:
  class_path: glt_lightning.LinkPredictor
  init_args: {hidden_channels: 32, num_layers: 2, lr: 0.02, metrics: [auc]}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    task: link
    dataset:
      nodes:
        user: {path: users.csv, id: name, features: hint_*}
        item: {path: items.csv, id: name, features: hint_*}
      edges: {user__buys__item: {path: buys.csv, source: user, destination: item}}
    undirected: true
    num_neighbors: [10, 10]
    batch_size: 256
    seeds: {input_type: user__buys__item}
    links: {edge_splits: {num_val: 0.1, num_test: 0.2}}
""")


def lightning(words: str) -> str:
    command = [sys.executable, "-m", "lightning", *words.split()]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


lightning("fit --config shop.yaml")
print(lightning("test --config shop.yaml --ckpt_path best"))

# %% [markdown]
# The ten best items of each user, computed exactly over all items.

# %%
lightning("recommend --config shop.yaml --ckpt_path best --k 10 --out best")
table = pq.read_table("best").to_pandas()
print(table[["id", "destination_id", "rank", "score"]].head(3))
lists = np.full((USERS, 10), -1)
number = {f"{name} {each}": each for name, most in (("user", USERS), ("item", ITEMS)) for each in range(most)}
lists[table["id"].map(number), table["rank"] - 1] = table["destination_id"].map(number)
known = np.zeros((USERS, ITEMS), dtype=bool)
known[bought[0], bought[1]] = True
assert not known[np.repeat(np.arange(USERS), 10), lists.ravel()][lists.ravel() >= 0].any()  # nothing that the user has

# %% [markdown]
# How many of the recommended items are of the user's taste, by rank. At random it would be one in five, and less, since many of
# them are bought.

# %%
fits = (kind[lists] == taste[:, None]).mean(0)
print(fits.round(2))
assert fits[0] > 0.4
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.set(xlabel="rank", ylabel="share of the user's taste", ylim=(0, 1))
axes.bar(range(1, 11), fits)
axes.axhline(1 / TASTES, color="grey", linestyle="--")
plt.show()
