"""Every public name of `dgl.distributed` and `dgl.dataloading` (DGL 2.1) is offered, or refused with what to use instead."""

from __future__ import annotations

import os
import subprocess

import pytest

import glt_lightning.compat.dgl as dgl
from glt_lightning.base import OptionError

# Without modules, backends, and what those modules import for themselves.
NAMES = {
    "distributed": """
        DistConnectError DistDataLoader DistEmbedding DistGraph DistGraphServer DistTensor GraphPartitionBook KVClient KVServer
        PartitionPolicy Request Response ServerState client_barrier connect_receiver connect_to_server copy_data_to_shared_memory
        create_receiver create_sender dgl_partition_to_graphbolt edge_split exit_client fast_pull finalize_receiver
        finalize_sender find_edges get_group_id get_machine_id get_num_client get_num_machines get_rank in_subgraph initialize
        load_partition load_partition_book load_partition_feats node_split partition_graph read_ip_config recv_request
        recv_response register_service remote_call remote_call_to_machine sample_etype_neighbors sample_neighbors send_request
        send_request_to_machine send_response set_machine_id set_num_client set_num_machines set_rank start_server
        wait_for_senders""",
    "dataloading": """
        BlockSampler ClusterGCNSampler Collator DataLoader DistDataLoader DistEdgeDataLoader DistNodeDataLoader EdgeCollator
        EdgePredictionSampler GraphCollator GraphDataLoader LaborSampler MultiLayerFullNeighborSampler
        MultiLayerNeighborSampler NeighborSampler NodeCollator SAINTSampler Sampler ShaDowKHopSampler SpotTarget
        as_edge_prediction_sampler find_exclude_eids""",
    "dataloading.negative_sampler": "GlobalUniform PerSourceUniform Uniform",
    "distributed.optim": "SparseAdagrad SparseAdam",
}
# Of earlier releases, as the documents and guides of DGL have them.
EARLIER = {"distributed": "get_num_clients shutdown_servers", "dataloading": "NodeDataLoader EdgeDataLoader"}
_INSIDE = {  # of the loaders of DGL
    *("CollateWrapper", "DDPTensorizedDataset", "TensorizedDataset", "WorkerInitWrapper", "create_tensorized_dataset"),
    *(
        "remove_parent_storage_columns",
        "restore_parent_storage_columns",
        "set_dst_lazy_features",
        "set_edge_lazy_features",
    ),
    *("set_node_lazy_features", "set_src_lazy_features"),
}
LIST = """\
import inspect, sys, dgl, dgl.distributed, dgl.dataloading
from dgl.dataloading import negative_sampler
modules = {"distributed": dgl.distributed, "dataloading": dgl.dataloading}
modules |= {"dataloading.negative_sampler": negative_sampler, "distributed.optim": dgl.distributed.optim}
for key, module in modules.items():
    for name in sorted(dir(module)):
        each = getattr(module, name)
        home = getattr(each, "__module__", "") or ""
        if callable(each) and not name.startswith("_") and home.startswith("dgl." + key.partition(".")[0]):
            print("found", key, name)
"""


def listed() -> set[tuple[str, str]]:
    return {(module, name) for names in (NAMES, EARLIER) for module, text in names.items() for name in text.split()}


def said_of(module: str, name: str) -> str:
    """Why there is no such name; empty where there is."""
    home = dgl
    for part in module.split("."):
        home = getattr(home, part)
    try:
        found = getattr(home, name)
    except OptionError as error:
        return str(error)
    return "" if callable(found) and name in home.__all__ else f"{name} is not offered, and not refused"


def test_each_name_is_there_or_says_what_to_use() -> None:
    said = {names: said_of(*names) for names in listed()}
    refused = {name: text for (_, name), text in said.items() if text}
    assert len(refused) == 63, sorted(refused)
    assert not [name for name, text in refused.items() if f"{name}: " not in text or len(text.split()) < 3]
    with pytest.raises(AttributeError):
        _ = dgl.distributed.no_such_name


def test_members_that_are_not_offered_say_what_to_use(g) -> None:
    assert (g.rank(), g.rank + 0, g.get_ntype_id("node"), g.get_etype_id("to")) == (0, 0, 0, 0)
    for name in (
        "out_degrees",
        "edge_subgraph",
        "in_degrees",
        "local_partition",
        "node_attr_schemes",
        "edge_attr_schemes",
    ):
        with pytest.raises(OptionError, match=rf"DistGraph\.{name}: "):
            getattr(g, name)
    assert not hasattr(g, "no_such_name")
    book = g.get_partition_book()
    for name in ("metadata", "nid2localnid", "eid2localeid"):
        with pytest.raises(OptionError, match=rf"GraphPartitionBook\.{name}: .*partid2nids"):
            getattr(book, name)
    assert not hasattr(book, "no_such_name")
    for name in ("in_subgraph", "random_walk"):
        with pytest.raises(OptionError, match=rf"sampling\.{name}: use "):
            getattr(dgl.sampling, name)


@pytest.mark.slow
def test_no_name_of_dgl_is_forgotten() -> None:
    python = os.environ.get("GLT_TEST_DGL_PYTHON")
    if not python:
        pytest.skip("needs DGL: set GLT_TEST_DGL_PYTHON to a Python that has the package dgl")
    done = subprocess.run([python, "-I", "-W", "ignore", "-c", LIST], capture_output=True, text=True, timeout=100)
    found = {(m, n) for line in done.stdout.splitlines() if line.startswith("found ") for _, m, n in [line.split()]}
    assert len(found) > 80, done.stderr
    assert {(module, name) for module, name in found if name not in _INSIDE} <= listed()
