"""Draw options travel whole: a configuration is one, and an owner reads of them what changes its answer."""

import numpy as np
import pytest

from glt_lightning.base import DataError, DrawOptions, SamplingOptions
from glt_lightning.kernels import Picks
from glt_lightning.sampling import SamplerConfig


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("with_edge", [False, True])
def test_through_a_message(replace, with_edge):
    config = SamplerConfig(0, ((3,),), replace=replace, with_edge=with_edge, threads=4)
    assert isinstance(config, DrawOptions)
    assert DrawOptions.from_wire(config.to_wire()) == DrawOptions(replace=replace, with_edge=with_edge)


def test_older_owners_are_asked_in_the_same_words():
    assert DrawOptions(threads=8).to_wire() == {"replace": False, "with_edge": False}
    assert DrawOptions.from_wire({"hop": 1}) == DrawOptions()


def test_no_threads():
    with pytest.raises(DataError, match="threads: expected at least 1, got 0"):
        SamplerConfig(0, ((3,),), threads=0)


def test_every_option_of_the_sampler_reaches_the_draw():
    asked = SamplingOptions(replace=True, with_edge=True, num_threads=3)
    assert asked.draw == DrawOptions(replace=True, with_edge=True, threads=3)
    config = SamplerConfig(0, ((3,),), **asked.draw.values)
    values = {"replace": True, "with_edge": True, "threads": 3, "weights": (), "timed": False, "last": False}
    values |= {"labor": False, "picker": None}
    assert config.values == asked.draw.values == values
    # edges and threads change no draw, so a checkpoint resumes with others
    assert {name: value for name, value in config.identity.items() if value is not None} == {"replace": True}


@pytest.mark.parametrize("with_edge", [False, True])
def test_columns_are_the_arrays_of_picks(with_edge):
    draw = DrawOptions(with_edge=with_edge)
    none = Picks.none(np.dtype(np.int32), draw)
    assert [name for name in ("neighbors", "edge_rows") if getattr(none, name) is not None] == list(draw.columns)
