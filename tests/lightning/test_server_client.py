"""`GLTServerClientStrategy` with one rank, in this process: servers beside it, or one that it starts itself."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import StrategyRegistry

import glt_lightning
from glt_lightning import CacheOptions, GLTDataModule, GLTServerClientStrategy, LocalPartition, SamplingOptions
from glt_lightning.base import (
    ClusterOptions,
    DataError,
    DeadlineOptions,
    OptionError,
    PartitionError,
    PeerError,
    PeerLostError,
)
from glt_lightning.workers import DistContext, HostedServer, Link, RemoteGraph, Role, ServerPlan
from tests.helpers.servers import cluster
from tests.lightning.serving import free_addresses, serving
from tests.lightning.tiny import CLASSES, NODES, WIDTH, Noting, learnable_hetero


@pytest.fixture
def folder(make_data) -> Path:
    """A partition of the small graph into two parts."""
    data = make_data(partition={"num_parts": 2})
    data.prepare_data()
    return data.partition_dir


def client_data(where: ClusterOptions | None, **options: Any) -> GLTDataModule:
    """A data module that knows of no graph but that of the servers."""
    return GLTDataModule(**{"num_neighbors": [5, 5], "batch_size": 20, "cluster": where} | options)


def whole_run(trainer: Any, model: Noting, data: GLTDataModule) -> dict[str, Any]:
    trainer.fit(model, data)
    (tested,) = trainer.test(model, data, verbose=False)
    (validated,) = trainer.validate(model, data, verbose=False)
    predicted = trainer.predict(model, data)
    return {
        "seen": model.seen,
        "losses": model.losses,
        "tested": tested,
        "validated": validated,
        "n_id": torch.cat([batch["n_id"] for batch in predicted]).tolist(),
        "logits": torch.cat([batch["logits"] for batch in predicted]).tolist(),
    }


def test_registered_once() -> None:
    assert "glt_server_client" in StrategyRegistry.available_strategies()
    GLTServerClientStrategy.register_strategies(StrategyRegistry)
    assert isinstance(StrategyRegistry.get("glt_server_client"), GLTServerClientStrategy)
    assert glt_lightning.GLTServerClientStrategy is GLTServerClientStrategy


def test_same_run_as_in_process(make_data, make_model, make_trainer, folder: Path) -> None:
    """Fit, test, validate and predict: from two servers with a part each, and from one that the run starts."""
    sampling = SamplingOptions(seed=5)
    here = whole_run(
        make_trainer(strategy="ddp"),
        make_model(Noting, dropout=0.0),
        make_data(partition={"num_parts": 2}, sampling=sampling),
    )
    assert len(here["seen"][0]) == 5
    assert here["n_id"] == list(range(NODES))
    with serving(folder, servers=2) as (where, _):
        theirs = client_data(where, sampling=sampling)
        assert (theirs.num_features, theirs.num_classes, theirs.num_nodes) == (WIDTH, CLASSES, NODES)
        assert whole_run(make_trainer(strategy="glt_server_client"), make_model(Noting, dropout=0.0), theirs) == here
    bare = make_data(partition={"num_parts": 2}, sampling=sampling)
    assert whole_run(make_trainer(strategy="glt_server_client"), make_model(Noting, dropout=0.0), bare) == here


def test_options_that_the_graph_was_not_made_with(make_model, make_trainer, folder: Path) -> None:
    """They were passed over: the run trained on another graph than its config.yaml said."""
    with serving(folder) as (where, _):
        trainer = make_trainer(strategy="glt_server_client")
        with pytest.raises(OptionError, match="undirected: True, and the graph servers' partition was made with False"):
            trainer.fit(make_model(), client_data(where, undirected=True))
        with pytest.raises(
            OptionError, match=r"dataset: the data set huge, and the graph servers' .* made of tiny\. Remove"
        ):
            trainer.fit(make_model(), client_data(where, dataset="elsewhere/huge.npz"))
        make_trainer(strategy="glt_server_client", fast_dev_run=True).fit(
            make_model(), client_data(where, dataset="/not/on/this/host/Tiny.npz")
        )
    named = {"num_neighbors": [5, 5], "partition": {"dir": str(folder)}}
    with pytest.raises(OptionError, match=r"normalize: rows, and .* was made with none. Remove normalize"):
        make_trainer().fit(make_model(), GLTDataModule(**named, normalize="rows"))
    make_trainer(fast_dev_run=True).fit(make_model(), GLTDataModule(**named, undirected=False, normalize="none"))


@pytest.mark.parametrize("server_rank", ["auto", 1])
def test_rank_takes_its_server(make_model, make_trainer, folder: Path, server_rank: Any) -> None:
    with serving(folder, servers=2, server_rank=server_rank) as (where, hosted):
        counted: list[list[int]] = []

        class Look(Callback):
            def on_train_end(self, *_: Any) -> None:
                counted.append([len(host.server.status()["clients"]) for host in hosted])

        make_trainer(strategy="glt_server_client", callbacks=[Look()]).fit(make_model(), client_data(where))
    assert counted == [[0, 1] if server_rank == 1 else [1, 0]]


def test_data_module_learns_all_from_a_server(make_data, tmp_path: Path) -> None:
    hetero = make_data(dataset=learnable_hetero(), undirected=True, root=str(tmp_path / "hetero"))
    hetero.prepare_data()
    with serving(hetero.partition_dir) as (where, _):
        theirs = client_data(where)
        for name in ("num_features", "num_nodes", "num_classes", "metadata", "target_type"):
            assert getattr(theirs, name) == getattr(hetero, name), name


def test_own_seeds_and_predictions_of_servers(make_data, make_model, make_trainer, folder: Path) -> None:
    own = {
        "seeds": {"splits": {"train": list(range(0, 60, 2)), "val": [5, 3]}},
        "evaluation": {"predict_split": "test"},
    }
    own["partition"] = {"allow": ["overlapping_splits"]}
    with serving(folder, servers=2) as (where, _):
        model, trainer = make_model(Noting), make_trainer(strategy="glt_server_client", max_epochs=1)
        data = client_data(where, **own)
        trainer.fit(model, data)
        predicted = trainer.predict(model, data)
        with pytest.raises(DataError, match=f"{NODES} at position 0 is not a node"):
            trainer.fit(model, client_data(where, seeds={"splits": {"train": [NODES]}}))
    assert sorted(i for batch in model.seen[0] for i in batch) == list(range(0, 60, 2))
    reference = make_data()
    reference.prepare_data()
    reference.setup()
    expected = [i for b in reference.test_dataloader() for i in b.n_id[: b.batch_size].tolist()]
    reference.teardown()
    assert torch.cat([batch["n_id"] for batch in predicted]).tolist() == expected


def test_resumes_in_mid_epoch(make_data, make_model, make_trainer, folder: Path, tmp_path: Path) -> None:
    steps = ModelCheckpoint(dirpath=tmp_path / "ckpt", filename="{step}", every_n_train_steps=3, save_top_k=-1)
    with serving(folder) as (where, _):
        whole, resumed = make_model(Noting, dropout=0.0), make_model(Noting, dropout=0.0)
        keep = {"enable_checkpointing": True, "callbacks": [steps]}
        make_trainer(strategy="glt_server_client", **keep).fit(whole, client_data(where))
        trainer = make_trainer(strategy="glt_server_client")
        trainer.fit(resumed, client_data(where), ckpt_path=str(tmp_path / "ckpt" / "step=6.ckpt"))
    here = make_model(Noting, dropout=0.0)  # samples itself, from one part instead of two
    make_trainer().fit(here, make_data(), ckpt_path=str(tmp_path / "ckpt" / "step=6.ckpt"))
    assert resumed.losses == here.losses == whole.losses[6:]
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_contexts_of_client_and_server(make_model, make_trainer, folder: Path) -> None:
    seen: list[DistContext] = []

    class Look(Callback):
        def on_train_start(self, trainer: Any, _: Any) -> None:
            seen.append(trainer.strategy.context)

    with serving(folder, servers=2) as (where, hosted):
        make_trainer(strategy="glt_server_client", max_epochs=1, callbacks=[Look()]).fit(
            make_model(), client_data(where)
        )
        servers = [host.context for host in hosted]
    (client,) = seen
    assert (client.role, client.rank, client.world_size) == (Role.CLIENT, 0, 1)
    assert (client.num_servers, client.num_clients, client.global_rank, client.parts) == (2, 1, 2, ())
    assert client.peers == tuple(where.servers)
    assert [(s.role, s.rank, s.world_size, s.parts) for s in servers] == [
        (Role.SERVER, 0, 2, (0,)),
        (Role.SERVER, 1, 2, (1,)),
    ]
    assert servers[0].peers == (where.servers[1],)


# A server that the run starts itself


class _Kill(Callback):
    """Kills the run's own server before some training batches."""

    def __init__(self, *batches: int) -> None:
        self._batches = batches
        self.pids: list[int] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step in self._batches and trainer.global_step == batch_idx + 5 * trainer.current_epoch:
            server = trainer.strategy._server
            self.pids.append(server.pid)
            os.kill(server.pid, signal.SIGKILL)


def test_own_server_is_started_again(make_data, make_model, make_trainer, capfd: pytest.CaptureFixture[str]) -> None:
    calm, shaken = make_model(Noting, dropout=0.0), make_model(Noting, dropout=0.0)
    make_trainer(strategy="glt_server_client").fit(calm, make_data())
    kill = _Kill(2, 7)
    make_trainer(strategy="glt_server_client", callbacks=[kill]).fit(shaken, make_data())
    assert len(set(kill.pids)) == 2
    assert shaken.seen == calm.seen
    assert shaken.losses == calm.losses
    said = capfd.readouterr().err
    for pid in kill.pids:
        line = f"[graph server] the graph server of this run (pid {pid}) was killed by SIGKILL; restarting it."
        assert line in said


def test_own_server_is_given_up(make_data, make_model, make_trainer, capfd: pytest.CaptureFixture[str]) -> None:
    data = make_data(sampling=SamplingOptions(max_restarts=0))
    with pytest.raises(PeerError) as raised:
        make_trainer(strategy="glt_server_client", callbacks=[_Kill(1)]).fit(make_model(Noting), data)
    reason = "was killed by SIGKILL, after 0 restarts in a row, the limit of sampling.max_restarts."
    assert reason in str(raised.value.__cause__)
    assert reason in capfd.readouterr().err


@pytest.mark.diagonal(most=1)
@pytest.mark.parametrize("where", ["training_step", "validation_step", "on_train_epoch_end"])
def test_error_closes_everything(make_data, make_model, make_trainer, where: str) -> None:
    class Broken(Noting):
        pass

    def fail(self, *_: Any) -> None:
        raise ZeroDivisionError("mine")

    setattr(Broken, where, fail)
    trainer = make_trainer(strategy="glt_server_client")
    with pytest.raises(ZeroDivisionError, match="mine"):
        trainer.fit(make_model(Broken), make_data())
    assert trainer.strategy.session is None  # and the leak police looks for the server


def test_several_hosts_need_servers(make_data, tmp_path: Path) -> None:
    strategy = GLTServerClientStrategy()
    strategy._num_nodes = 2
    with pytest.raises(OptionError, match=r"cluster\.servers: needed on 2 hosts\. Start `python -m lightning serve"):
        strategy.open_graph(tmp_path)


# What is refused


def test_options_of_data_module_and_strategy_must_agree(make_model, make_trainer, folder: Path) -> None:
    with serving(folder) as (where, _):
        strategy = GLTServerClientStrategy(ClusterOptions(prefetch=9))
        with pytest.raises(OptionError, match=r"cluster: the data module has .*Give it to one of them"):
            make_trainer(strategy=strategy).fit(make_model(), client_data(where))
        make_trainer(strategy=GLTServerClientStrategy(where), max_epochs=1).fit(make_model(), client_data(where))


@pytest.mark.parametrize("strategy", ["auto", "glt_worker"])
def test_other_strategies_do_not_sample_on_servers(make_model, make_trainer, folder: Path, strategy: str) -> None:
    with serving(folder) as (where, _), pytest.raises(OptionError, match="dataset: not given"):
        make_trainer(strategy=strategy).fit(make_model(), client_data(where))


def test_no_trainer_samples_on_servers(folder: Path) -> None:
    with serving(folder) as (where, _), pytest.raises(OptionError, match="only strategy glt_server_client samples"):
        client_data(where).setup()


def test_nobody_there(make_model, make_trainer) -> None:
    (address,) = free_addresses(1)
    where = cluster(servers=[address], deadlines=DeadlineOptions(connect_s=1, reconnect_s=0.3))
    said = (
        rf"graph server \({address}\): nothing listens at this address.*"
        r"raise cluster\.deadlines\.reconnect_s.*lightning serve --config"
    )
    with pytest.raises(PeerLostError, match=said):
        _ = client_data(where).num_features
    with pytest.raises(PeerLostError, match=rf"server 0 \({address}\)"):
        make_trainer(strategy="glt_server_client").fit(make_model(), client_data(where))


def test_another_partition_at_another_server_is_refused(make_data, folder: Path) -> None:
    """Servers that hold parts of different partitions do not answer each other."""
    other = make_data(partition={"num_parts": 2, "seed": 1})
    other.prepare_data()
    where = cluster(servers=free_addresses(2), deadlines=DeadlineOptions(reconnect_s=1, call_s=5))
    plans = [
        ServerPlan(directory=str(path), cluster=where, address=address, rank=rank)
        for rank, (path, address) in enumerate(zip((folder, other.partition_dir), where.servers, strict=True))
    ]
    first, second = HostedServer(plans[0]), HostedServer(plans[1])
    try:
        link = Link(job="", role="tool", name="a test", deadlines=where.deadlines)
        peer = link.peer("server 0", [where.servers[0]], link.open_transport())
        with pytest.raises(PeerError, match="different partitions: options_hash"):
            RemoteGraph(peer).seeds(0)
        peer.close()
    finally:
        first.close()
        second.close()


def test_partition_that_is_not_mapped_by_a_server_is_no_graph(make_data, folder: Path) -> None:
    strategy = GLTServerClientStrategy()
    with pytest.raises(OptionError, match=r"the graph that strategy\.open_graph\(\) returned, got LocalPartition"):
        strategy.open_session(LocalPartition.open(folder), SamplingOptions(), seed=3)


@pytest.mark.parametrize(
    ("parts", "rank", "said"),
    [
        ((5,), 0, r"server\.parts: .* has the parts 0 to 1, got \[5\]"),
        ((1,), 0, r"server\.parts: \[1\] lacks \[0\], which the other servers request from server 0 of 2"),
    ],
)
def test_parts_that_others_would_miss(folder: Path, parts: tuple[int, ...], rank: int, said: str) -> None:
    where = cluster(servers=free_addresses(2))
    plan = ServerPlan(directory=str(folder), cluster=where, address=where.servers[rank], rank=rank, parts=parts)
    with pytest.raises(OptionError, match=said):
        HostedServer(plan)


def test_plan_survives_a_private_channel(tmp_path: Path) -> None:
    plan = ServerPlan(
        directory=str(tmp_path),
        cluster=cluster(servers=["a:1", "b:2"]),
        address="a:1",
        parts=(0, 2),
        token="x" * 16,
        cache=CacheOptions(ratio={"a": 0.5}),
    )
    assert ServerPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_missing_folder_of_own_server(make_model, make_trainer, tmp_path: Path) -> None:
    data = client_data(None, partition={"dir": str(tmp_path / "none")})
    with pytest.raises((PeerError, PartitionError), match="none"):
        make_trainer(strategy="glt_server_client").fit(make_model(), data)
