"""Training with accelerator gpu: the same batches, and nearly the same losses, as training on the CPU."""

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything

from glt_lightning import GLTDataModule, SamplingOptions
from tests.lightning.tiny import Noting

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # Lightning leaves it alone then


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


HALF = {"feature_bytes": 100_000, "topology_bytes": 50_000}  # of hybrid: some of the demo's rows


def fit(root, accelerator, strategy="auto", **sampling):
    """Two epochs on the demo graph. Without dropout, of which another device draws other masks."""
    seed_everything(1, verbose=False)
    data = GLTDataModule(
        "demo",
        root=str(root),
        undirected=True,
        num_neighbors=[15, 10],
        batch_size=64,
        sampling=SamplingOptions(seed=5, **sampling),
    )
    model = Noting(
        in_channels=data.num_features, out_channels=data.num_classes, hidden_channels=128, dropout=0.0, lr=0.01
    )
    trainer = Trainer(
        accelerator=accelerator,
        devices=1,
        strategy=strategy,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(root),
    )
    trainer.fit(model, data)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return model, metrics, type(trainer.train_dataloader._producer).__name__


@pytest.fixture(scope="module")
def on_the_cpu(root):
    return fit(root, "cpu")


@pytest.mark.parametrize(
    ("strategy", "topology", "features"),
    [
        ("auto", "auto", "auto"),
        ("glt_worker", "auto", "auto"),
        ("auto", "uva", "uva"),
        ("auto", "hybrid", "hybrid"),
        ("auto", "device", "cpu"),
    ],
)
def test_losses_are_those_of_the_cpu(kernels, root, on_the_cpu, strategy, topology, features):
    """Sums on a GPU are rounded in another order, so losses drift apart slowly."""
    plain, expected, producer = on_the_cpu
    assert producer == "InlineProducer"
    budgets = HALF if topology == "hybrid" else {}
    model, metrics, producer = fit(root, "gpu", strategy, topology=topology, features=features, **budgets)
    assert producer == "DeviceProducer"
    assert model.seen == plain.seen
    assert model.losses == pytest.approx(plain.losses, rel=0.02, abs=0.01)
    assert model.losses[:3] == pytest.approx(plain.losses[:3], rel=1e-3)
    assert metrics["val_acc"] == pytest.approx(expected["val_acc"], abs=0.03)
    assert metrics["val_loss"] == pytest.approx(expected["val_loss"], rel=0.05)


def test_sampler_processes_feed_a_gpu_as_before(kernels, root, on_the_cpu):
    plain, _, _ = on_the_cpu
    model, _, producer = fit(root, "gpu", num_workers=1)
    assert producer == "SubprocessProducer"
    assert model.seen == plain.seen
    assert model.losses[:3] == pytest.approx(plain.losses[:3], rel=1e-3)


def test_prediction_and_test_on_a_gpu(kernels, root, on_the_cpu):
    """Evaluation draws the same neighbours each time, on whatever samples."""
    plain, _, _ = on_the_cpu
    data = GLTDataModule(
        "demo", root=str(root), undirected=True, num_neighbors=[15, 10], sampling=SamplingOptions(seed=5)
    )
    found = []
    for accelerator in ("cpu", "gpu"):
        trainer = Trainer(accelerator=accelerator, devices=1, logger=False, enable_progress_bar=False)
        pieces = trainer.predict(plain, data)
        found.append([torch.cat([piece[name].cpu() for piece in pieces]) for name in ("n_id", "logits")])
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-3)
