"""How the arrays of a batch lie in its memory."""

import numpy as np

from glt_lightning.sampling import Draft
from glt_lightning.sampling.sample import copied


def test_arrays_begin_at_cache_lines():
    """64 bytes apart at least, so that every dtype is aligned and no two arrays share a line."""
    arrays = {"a": np.arange(3, dtype=np.int8), "b": np.arange(9.0), "c": np.arange(2)}
    draft = Draft([copied(name, array) for name, array in arrays.items()])
    assert [(place.name, place.offset) for place in draft.layout] == [("a", 0), ("b", 64), ("c", 192)]
    assert draft.nbytes == 256
    found = draft.write(np.empty(draft.nbytes, dtype=np.uint8))
    assert {name: array.tolist() for name, array in found.items()} == {n: a.tolist() for n, a in arrays.items()}
