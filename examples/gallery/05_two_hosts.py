# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # Two hosts, and the same weights as on one
#
# Each host holds half of the graph and trains. On this machine both are processes; on two machines the same commands run, with
# `MASTER_ADDR` and the certificates naming them, or `glt-lightning launch` starts them by ssh.

# %%
import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # on each rank alike: the last bits of a sum depend on the threads
Path("run.yaml").write_text("""
seed_everything: 0
trainer: {strategy: glt_worker, accelerator: cpu, devices: 1, max_epochs: 4, enable_progress_bar: false,
          enable_model_summary: false, num_sanity_val_steps: 0}
model:
  class_path: glt_lightning.GraphSAGE
  init_args: {hidden_channels: 32, num_layers: 2, dropout: 0.0, lr: 0.01}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    dataset: demo
    undirected: true
    num_neighbors: [10, 5]
    batch_size: 32
    partition: {num_parts: 2}
cluster:
  security: {ca: certs/ca.pem, cert: certs/127.0.0.1.pem, key: certs/127.0.0.1.key, token_file: certs/token}
""")


def start(words: str, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lightning", *words.split()]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=ENVIRONMENT | more, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=250)
    assert process.returncode == 0, output[-3000:]
    return output


# %% [markdown]
# Hosts prove who they are: one authority for the job, a certificate for each host, and a secret. Then the partition is made.

# %%
print(ended(start("certs --dir certs --hosts 127.0.0.1 --token")))
print(ended(start("partition --config run.yaml")).partition("\n\n")[0])

# %%
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
both = "fit --config run.yaml --trainer.num_nodes 2 --trainer.default_root_dir both"
hosts = [start(both, **meeting, NODE_RANK=str(host)) for host in range(2)]
outputs = [ended(host) for host in hosts]
print(*[line for line in outputs[0].splitlines() if line.startswith("glt: epoch")], sep="\n")

# %% [markdown]
# One host with two ranks draws the same batches, so the weights are equal, bit for bit.

# %%
ended(start("fit --config run.yaml --trainer.devices 2 --trainer.default_root_dir one"))
(two,) = Path("both").glob("**/last.ckpt")
(one,) = Path("one").glob("**/last.ckpt")
weights = [torch.load(path, weights_only=False)["state_dict"] for path in (two, one)]
assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
print(f"{len(weights[0])} tensors are equal")

# %% [markdown]
# Where the rows of the batches came from.

# %%
with open(two.parents[1] / "metrics.csv") as file:
    shares = [float(row["glt/local_share"]) for row in csv.DictReader(file) if row.get("glt/local_share")]
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.set(xlabel="epoch", ylabel="share of rows", ylim=(0, 1))
epochs = range(1, len(shares) + 1)
axes.bar(epochs, shares, label="own host")
axes.bar(epochs, [1 - share for share in shares], bottom=shares, label="other host")
axes.legend(frameon=False)
plt.show()
