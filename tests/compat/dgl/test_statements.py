"""What DGL's own distributed tests and code promise, in 29 statements, and the tests that show it here.

DGL's tests of partition books, DistTensor, DistEmbedding, splits and loaders (tests/distributed) were read, and each promise
written down. `STATEMENTS` says of each where it is proved, or what is done instead: "better" where a user of DGL finds more.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from glt_lightning import DistGraph
from tests.helpers.partitions import partitioned, small_graph

TESTS = Path(__file__).parents[2]

STATEMENTS: dict[int, tuple[str, str]] = {
    1: (
        "The rows of a part are one range; the ranges of all parts tile a type; a part may have none.",
        "compat/dgl/test_statements.py::test_rows_of_parts_tile_a_type partition/test_verify.py::test_bounds "
        "partition/test_writer_equals_brute_force.py::test_more_parts_than_nodes",
    ),
    2: (
        "Ids lead to rows and back. Better: by the user's ids, whatever the parts.",
        "compat/dgl/test_statements.py::test_rows_of_parts_tile_a_type "
        "tensors/test_dist_graph.py::test_stored_data_are_read_by_row",
    ),
    3: (
        "Data of a row are those of the user's id, of nodes and edges.",
        "tensors/test_dist_graph.py::test_stored_data_are_read_by_row "
        "partition/test_writer_equals_brute_force.py::test_random_graphs",
    ),
    4: (
        "METIS cuts no more than random, and balances what it is asked to.",
        "partition/test_quality.py::test_streaming_cuts_little_more_than_metis partition/test_quality.py::test_all_is_even "
        "partition/test_quality.py::test_one_thing_is_even",
    ),
    5: (
        "A part has all edges into its nodes. Better: it stores no copies of other parts' nodes, so there is no flag to mind.",
        "partition/test_writer_equals_brute_force.py::test_random_graphs",
    ),
    6: (
        "An edge is of the part of its destination.",
        "partition/test_writer_equals_brute_force.py::test_random_graphs",
    ),
    7: (
        "All ranks create a tensor together, and it is one. Better: a rank that creates another one is an error, no hang.",
        "tensors/test_ranks.py::test_the_ranks_of_a_host_have_one_memory "
        "tensors/test_ranks.py::test_different_tensors_are_an_error_on_all_ranks",
    ),
    8: (
        "A tensor begins with zeros or with what init says, made once per host. Better: by the user's ids.",
        "tensors/test_dist_graph.py::test_a_new_tensor_is_zero tensors/test_init.py::test_a_callable_makes_rows "
        "tensors/test_init.py::test_values_do_not_depend_on_the_parts",
    ),
    9: ("A name with another shape or dtype is an error.", "tensors/test_dist_graph.py::test_one_name_is_one_tensor"),
    10: (
        "Tensors without a name are different ones. Better: their order is checked over the ranks.",
        "tensors/test_dist_graph.py::test_anonymous_tensors_are_different_ones "
        "tensors/test_ranks.py::test_other_calls_are_an_error_on_all_ranks",
    ),
    11: (
        "A closed tensor is gone and its name free. Better: no collective call in the garbage collector; what has a "
        "name is saved "
        "and loaded by `DistGraph.save` and `load`, and outlives the servers, too.",
        "tensors/test_dist_graph.py::test_one_name_is_one_tensor "
        "tensors/test_ranks.py::test_a_closed_or_forgotten_table_frees_its_memory "
        "tensors/test_snapshot.py::test_what_is_saved_is_loaded",
    ),
    12: (
        "Rows come in the order of the ids, with duplicates. Better: a write is seen everywhere when it returns.",
        "tensors/test_dist_graph.py::test_what_is_written_is_read tensors/test_model.py::test_programs_equal_one_array "
        "tensors/test_hosts.py::test_each_write_is_applied_once",
    ),
    13: (
        "Rows have to be those of a type; of two types with as many it has to be said which.",
        "tensors/test_dist_graph.py::test_two_types_with_as_many_rows_are_told_apart "
        "tensors/test_dist_graph.py::test_the_type_follows_from_the_rows_where_one_has_as_many",
    ),
    14: (
        "len, shape, dtype, name, count_nonzero and the union of masks.",
        "tensors/test_dist_graph.py::test_shape_dtype_and_schemes tensors/test_dist_graph.py::test_the_union_of_masks",
    ),
    15: (
        "Two jobs never meet under one name. Better: each has tables of its own, which refuse the ranks of others.",
        "tensors/test_hosts.py::test_strangers_and_nonsense_are_refused",
    ),
    16: (
        "Better: of writes of a row at the same time one wins as a whole, and they can be found.",
        "tensors/test_ranks.py::test_rows_are_never_a_mixture_of_two_writes "
        "tensors/test_ranks.py::test_a_conflict_is_found_on_every_rank",
    ),
    17: (
        "A step changes the rows of the forward pass; a rank without one takes part.",
        "tensors/test_steps.py::test_rows_without_a_gradient_stay tensors/test_two_ranks.py::test_two_ranks",
    ),
    18: (
        "Gradients of a row are summed and divided by its occurrences: reduction='occurrences'. The default is DDP's mean.",
        "tensors/test_steps.py::test_reduction_by_occurrences tensors/test_trainer.py::test_equals_the_dense_twin",
    ),
    19: (
        "Adam counts the steps of each row. States are saved as <number>-<state>.npy.",
        "kernels/test_embedding.py::test_steps tensors/test_checkpoints.py::test_files",
    ),
    20: (
        "A step ends with a barrier, and how rows lie on ranks does not matter. Better: to the last bit.",
        "tensors/test_two_ranks.py::test_two_ranks tensors/test_over_hosts.py::test_equals_the_run_on_one_host",
    ),
    21: (
        "Without gradients nothing is remembered. Better: neither after a forward pass without a step.",
        "tensors/test_steps.py::test_memory_does_not_grow tensors/test_steps.py::test_zero_grad_forgets",
    ),
    22: (
        "Rows and states are saved, and loaded by other numbers of ranks. Better: also by other parts and hosts; a "
        "missing file is "
        "an error, no warning.",
        "tensors/test_checkpoints.py::test_resumed_run_equals_the_uninterrupted_one "
        "tensors/test_over_hosts.py::test_checkpoints_of_other_hosts "
        "tensors/test_checkpoints.py::test_a_damaged_checkpoint_is_named",
    ),
    23: (
        "node_split: each row once, sizes that differ by one; or the rows of the own part. Better: any number of "
        "ranks and parts.",
        "tensors/test_split.py::test_each_row_once_and_evenly "
        "tensors/test_split.py::test_with_as_many_parts_as_ranks_it_is_dgls_answer "
        "tensors/test_split.py::test_uneven_gives_each_host_its_own_rows",
    ),
    24: (
        "Most rows of a rank are of its host: as many as an even split allows.",
        "tensors/test_split.py::test_each_row_once_and_evenly",
    ),
    25: (
        "A loader gives every seed once an epoch. Better: in an order that a seed fixes, and it resumes in mid-epoch.",
        "test_equality.py::test_sampler_processes loader/test_resume_elsewhere.py::test_other_parts",
    ),
    26: (
        "Batches of edges leave out their own edges, and those of the reverse type.",
        "loader/test_exclude_target_edges.py::test_no_batch_has_its_own_edges "
        "loader/test_exclude_target_edges.py::test_the_reverse_edge_type",
    ),
    27: (
        "Fan-out -1 is all neighbours; without replacement no edge comes twice; edges of weight 0 never.",
        "kernels/test_khop_equals_reference.py::test_random_graphs "
        "kernels/test_khop_equals_reference.py::test_every_way_of_picking "
        "sampling/test_has_edges.py::test_edges_of_weight_0_are_none",
    ),
    28: (
        "No rows, and rows without neighbours, give no edges.",
        "tensors/test_dist_graph.py::test_neighbours_of_nothing_and_of_mistakes "
        "kernels/test_khop_equals_reference.py::test_random_graphs",
    ),
    29: (
        "The same script runs alone. Better: with any number of parts.",
        "tensors/test_dist_graph.py::test_what_is_written_is_read "
        "tensors/test_split.py::test_masks_tensors_and_rows_give_the_same "
        "tensors/test_steps.py::test_steps_of_sgd_as_dense",
    ),
}


def test_each_statement_has_its_tests() -> None:
    assert list(STATEMENTS) == list(range(1, 30))
    for number, (_, places) in STATEMENTS.items():
        for place in places.split():
            file, name = place.split("::")
            assert re.search(rf"^ *def {name}\(", (TESTS / file).read_text(), re.MULTILINE), (number, place)


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_rows_of_parts_tile_a_type(tmp_path: Path, parts: int) -> None:
    with DistGraph(partitioned(small_graph(), tmp_path, parts)) as graph:
        for space, rows in (
            (graph.space(None, "node"), graph.num_nodes()),
            (graph.space(None, "edge"), graph.num_edges()),
        ):
            assert (space.bounds[0], space.bounds[-1], space.num_parts) == (0, rows, parts)
            assert (np.diff(space.bounds) >= 0).all()
            assert np.array_equal(np.bincount(space.parts_of(np.arange(rows)), minlength=parts), np.diff(space.bounds))
        ids = torch.arange(graph.num_nodes())
        assert torch.equal(graph.user_ids(graph.rows_of(ids)), ids)
        assert torch.equal(graph.rows_of(graph.user_ids(ids)), ids)
