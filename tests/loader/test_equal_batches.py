"""A batch is the same however many threads share its work; other ways to make one are in `tests/test_equality.py`."""

from glt_lightning.base import SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph


def test_many_threads_on_large_batches(tmp_path):
    """Enough rows per hop that the threads really share the work."""
    partition = partitioned(small_graph(6000), tmp_path)
    found = []
    for threads in (1, 2, 5):
        with Session(partition, SamplingOptions(num_threads=threads), seed=1) as context:
            loader = context.make_loader(LoaderSpec(name="all", num_neighbors=[5, 5], batch_size=5000, exact=True))
            found.append([contents(batch) for batch in loader])
    assert found[0] == found[1] == found[2]
