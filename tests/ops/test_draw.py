"""Draw options travel whole: a configuration is one, and an owner reads of them what changes its answer."""

import pytest

from glt_lightning.errors import DataError
from glt_lightning.ops.draw import DrawOptions
from glt_lightning.sampler.request import SamplerConfig


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
