"""The way from a user's id to a gid is in the folder, for every part, and folders without it are read."""

import json
import shutil

import numpy as np
import pytest

from glt_lightning.base import PartitionError
from glt_lightning.graph import LocalPartition
from tests.helpers.partitions import partitioned, small_hetero


def test_gids_are_the_inverse_of_user_ids(tmp_path):
    whole = partitioned(small_hetero(), tmp_path, 3)
    some = LocalPartition.open(whole.directory, parts=[1])
    for t, count in enumerate(whole.manifest.num_nodes):
        gids = some.gids(t)
        assert gids.dtype == np.dtype(whole.manifest.id_dtype)
        assert gids.tolist() == whole.seeds(t).gids.tolist()
        assert len(gids) == count


def test_a_folder_of_an_earlier_release(tmp_path):
    folder = partitioned(small_hetero(), tmp_path, 2).directory
    raw = json.loads((folder / "manifest.json").read_text())
    raw["version"] = 2
    raw["arrays"] = {path: entry for path, entry in raw["arrays"].items() if not path.startswith("nodes/")}
    (folder / "manifest.json").write_text(json.dumps(raw))
    shutil.rmtree(folder / "nodes")
    partition = LocalPartition.open(folder, verify=True)
    with pytest.raises(PartitionError, match=r"without nodes/1/gid\.npy.*Delete the folder and partition again"):
        partition.gids(1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda arrays: arrays.pop("nodes/0/gid.npy"), "the folder nodes/ has"),
        (lambda arrays: arrays["nodes/0/gid.npy"].update(shape=[1]), r"nodes/0/gid.npy is <i4 \[1\], expected <i4"),
        (lambda arrays: arrays.update({"nodes/0/x.npy": arrays["nodes/0/gid.npy"]}), "nodes/0 has"),
    ],
)
def test_entries_that_cannot_be(tmp_path, damage, said):
    folder = partitioned(small_hetero(), tmp_path, 1).directory
    raw = json.loads((folder / "manifest.json").read_text())
    damage(raw["arrays"])
    (folder / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(PartitionError, match=said):
        LocalPartition.open(folder)
