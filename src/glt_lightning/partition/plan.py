"""A plan of a partition before it is made: tasks, bytes read, memory, disk and time; and a refusal of what cannot fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glt_lightning.base import (
    EdgeType,
    Fanouts,
    Normalize,
    PartitionError,
    PartitionOptions,
    Progress,
    counted,
    numbers,
    size,
)
from glt_lightning.graph import available_memory
from glt_lightning.partition.assign import assigner_of
from glt_lightning.partition.assign.assigners import METIS_BYTES, MetisAssigner, require_countable
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.build.edges import entry_bytes, record_bytes
from glt_lightning.partition.build.rows import node_record, number_record
from glt_lightning.partition.build.space import (
    bytes_needed,
    is_ranked_by_vip,
    matrix_bytes,
    reads_of,
    require_room,
    sorts_of,
)
from glt_lightning.partition.build.steps import (
    counts,
    dealt_pieces,
    node_ranges,
    row_ranges,
    sorted_at_once,
    value_checks,
)
from glt_lightning.partition.build.stored_graph import StoredGraph, checked_attrs
from glt_lightning.partition.edge_splits.columns import CHUNK
from glt_lightning.partition.edge_splits.read import KeptEdges
from glt_lightning.partition.edge_splits.source import ExpectedLinks, LinkSource
from glt_lightning.partition.folder import require_space
from glt_lightning.partition.sources.base import EdgeList, GraphSource, rows_bytes
from glt_lightning.partition.sources.files import CscEdges, EndFiles, FileEdges
from glt_lightning.partition.sources.tables.mapping import NodeTable
from glt_lightning.partition.sources.tables.source import TableSource
from glt_lightning.partition.sources.transformed import TransformedSource
from glt_lightning.partition.splits import resolve_splits
from glt_lightning.partition.tasks.engine import planned_job, planned_width, task_memory
from glt_lightning.partition.tasks.job import Job
from glt_lightning.partition.writer import follow_batches

if TYPE_CHECKING:
    from glt_lightning.partition.sources.tables.job import TableJob

# CPU nanoseconds on one core of a server with x86-64 processors, measured with 12 M edges in files; METIS with 124 M.
_COUNTED, _DEALT, _SORTED = 8, 24, 52  # an edge
_CHECKED, _WRITTEN, _HASHED = 0.3, 0.7, 1.2  # a byte
_ASSIGNED, _NUMBERED = 100, 400  # a node
_RANKED, _PROPAGATED, _CUT = 4, 6, 670  # an edge of a hop for a part; an edge of a pass; an edge
# Of edges to predict, by what makes their splits: an edge, and how often all are read
_SPLIT = {"random": 315, "labels": 130, "relations": 220, "given": 245}
_PASSES = {"random": 2, "labels": 3, "relations": 2, "given": 2}
# Bytes of memory for each edge, and for each of those that are read at once
_SPLIT_MEMORY = {"random": (2, 220), "labels": (4, 45), "relations": (3, 95), "given": (16, 0)}
_HASH_BYTES = 64 << 20
_OF_NODES, _OF_EDGES = 20, 60  # a byte of tables; measured with text and Parquet, with integers and text as ids

_LIBRARIES = 130_000_000  # bytes of the interpreter and libraries
# Bytes for each node in the first process, measured (tests/partition/test_bounded_memory.py): while rows are read; for `vip`;
# for `streaming`, and for each quantity that it balances. Joining its groups takes 61, and 400 for each group.
_READING, _VIP = 26, 45
_STREAMING, _STREAMING_COLUMN = 29, 12


@dataclass(frozen=True)
class PlannedStep:
    """A step of a run.

    Attributes:
        name: What it does.
        tasks: Number of tasks. Those of a step run at the same time.
        reads: Bytes that they read, of the user's files and of files of earlier steps.
        cpu_s: CPU seconds of all tasks, about. None: not known.
        alone: Whether it is one task, in the first process.
    """

    name: str
    tasks: int
    reads: int
    cpu_s: float | None
    alone: bool = False


@dataclass(frozen=True)
class PartitionPlan:
    """What a partition takes; or the conversion of its tables, which comes first.

    Attributes:
        steps: In the order in which they run.
        width: Number of tasks that run at a time.
        disk_bytes: Least space that it takes while it is made, working files included.
        free_bytes: Free space there.
        first_bytes: Memory of the first process, about; METIS included.
        task_bytes: Memory of each of the others, about.
        available_bytes: Memory that this host has left.
        tables: The folder of the converted tables, of the plan of a conversion.
    """

    steps: tuple[PlannedStep, ...]
    width: int
    disk_bytes: int
    free_bytes: int
    first_bytes: int
    task_bytes: int
    available_bytes: int
    tables: Path | None = None

    def to_json(self) -> dict[str, Any]:
        tables = {} if self.tables is None else {"tables": str(self.tables)}
        return {**asdict(self), "cpu_s": self.cpu_s, "wall_s": self.wall_s} | tables

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds, about. None: not known."""
        known = [each.cpu_s for each in self.steps if each.cpu_s is not None]
        return sum(known) if len(known) == len(self.steps) else None

    @property
    def wall_s(self) -> float | None:
        """Seconds, about, where disks are not the limit. None: not known."""
        if self.cpu_s is None:
            return None
        shares = (1 if each.alone else max(1, min(self.width, each.tasks)) for each in self.steps)
        return sum((each.cpu_s or 0) / share for each, share in zip(self.steps, shares, strict=True))

    def text(self, folder: Path, options: PartitionOptions) -> str:
        """The plan as lines for people. folder, options: those of the partition."""
        lines = [f"{folder}: {counted(options.num_parts, 'part')}, {options.algorithm_name}"]
        if self.tables is not None:
            lines = [f"{self.tables}: the tables are converted first; the partition is planned when they are"]
        lines.append(f"{'':46}{'tasks':>8}{'reads':>12}{'CPU':>14}")
        for each in self.steps:
            time = "not known" if each.cpu_s is None else numbers.duration(each.cpu_s)
            where = " (first process)" if each.alone else ""
            lines.append(f"{each.name + where:46}{each.tasks:>8,}{size(each.reads):>12}{time:>14}")
        others = "" if self.width == 1 else f", {size(self.task_bytes)} in each of {self.width - 1} others"
        lines.append(
            f"memory: at most about {size(self.first_bytes)} in the first process{others}; {size(self.available_bytes)} available"
        )
        lines.append(
            f"disk: at least {size(self.disk_bytes)} while it is made, working files included; {size(self.free_bytes)} free"
        )
        if self.cpu_s is None or self.wall_s is None:
            lines.append("time: not known for " + ("this assignment" if self.tables is None else "compressed text"))
        else:
            lines.append(
                f"time: about {numbers.duration(self.cpu_s)} of CPU; {numbers.duration(self.wall_s)} with "
                f"{counted(self.width, 'task')} at a time, if disks keep up"
            )
        return "\n".join(lines)


def plan_partition(
    source: GraphSource,
    out_dir: str | Path,
    options: PartitionOptions,
    *,
    undirected: bool | None = None,
    normalize: Normalize = "none",
    splits: Mapping[str, Any] | None = None,
    num_neighbors: Fanouts | None = None,
    batch_size: int | None = None,
) -> tuple[PartitionPlan, PartitionError | None]:
    """Plans a partition without reading features or edges; of tables that are not converted yet, their conversion. Of edges that
    are held out it knows shares alone: where numbers or edges are given, it plans all edges.

    Returns the plan, and the error with which `partition_graph` would refuse it: too little disk, or too little memory for METIS.

    Args:
        source, out_dir, options, undirected, normalize, splits: As for `partition_graph`.
        num_neighbors, batch_size: Those of training, which options without their own assume.

    Example:
        >>> plan, error = plan_partition(open_source("graph.npz", "data"), "parts", PartitionOptions(num_parts=2))
        >>> [step.name for step in plan.steps][:3], error
        (['checking values', 'counting edges', 'assigning nodes'], None)
    """
    source = ExpectedLinks(source) if isinstance(source, LinkSource) else source
    tables = source.inner if isinstance(source, ExpectedLinks) else source
    tables = tables.inner if isinstance(tables, TransformedSource) else tables
    if isinstance(tables, TableSource) and not tables.future_folder.exists():
        return plan_conversion(tables, options)
    folder = Path(out_dir)
    options = follow_batches(options, folder, num_neighbors, batch_size)
    made = {"undirected": bool(undirected), "normalize": normalize}
    graph = StoredGraph(source, options, resolve_splits(source, splits), made, Progress(False))
    assigner = assigner_of(options)
    graph.check()
    require_countable(assigner, graph.total_nodes, options)
    there = next(each for each in folder.absolute().parents if each.exists())
    job = planned_job(graph, there / "run")
    steps, first_bytes = [*_steps(job, assigner)], _first_process(graph, assigner)
    disk_bytes = bytes_needed(job, assigner)
    if isinstance(source, ExpectedLinks):
        step, memory = _splitting(source)
        steps, first_bytes = [step, *steps], max(first_bytes, _LIBRARIES + memory)
        expected = source.splits_of.values()
        disk_bytes += sum(each.files_bytes + 16 * each.pairs for each in expected)  # the edges are stored, too
        disk_bytes = max(disk_bytes, sum(each.drawing_bytes for each in expected))
    plan = PartitionPlan(
        steps=tuple(steps),
        width=job.width,
        disk_bytes=disk_bytes,
        free_bytes=shutil.disk_usage(there).free,
        first_bytes=first_bytes,
        task_bytes=_LIBRARIES + job.memory_bytes + _READING * max(graph.num_nodes.values()),
        available_bytes=available_memory(),
    )
    return plan, _refusal(require_room, job, assigner)


def _refusal(check: Callable[..., None], *given: Any) -> PartitionError | None:
    try:
        check(*given)
    except PartitionError as error:
        return error
    return None


def _splitting(source: ExpectedLinks) -> tuple[PlannedStep, int]:
    """Returns the step that splits edges, in the first process, and the memory that it takes at the peak."""
    reads, cpu_s, memory = 0, 0.0, 0
    for edge_type, each in source.splits_of.items():
        reads += _PASSES[each.kind] * input_bytes(source.inner.edges(edge_type))
        cpu_s += each.edges * _SPLIT[each.kind] / 1e9
        of_each, of_some = _SPLIT_MEMORY[each.kind]
        memory = max(memory, of_each * each.edges + of_some * min(each.edges, CHUNK))
    return PlannedStep("splitting edges", 1, reads, cpu_s, alone=True), memory


def _steps(job: Job, assigner: Assigner) -> Iterator[PlannedStep]:
    graph = job.graph
    checks, checked = value_checks(job), sum(rows_bytes(each.rows) for each in checked_attrs(graph).values())
    yield PlannedStep("checking values", len(checks), checked, checked * _CHECKED / 1e9)
    edges = sum(each.num_edges for each in graph.edges.values())
    read = sum(map(input_bytes, graph.edges.values()))
    yield PlannedStep("counting edges", len(counts(job)), read, edges * _COUNTED / 1e9)
    rows = [(each.edges, each.record, each.source) for sorts in sorts_of(graph, assigner) for each in sorts]
    if rows:
        yield _sorting(job, "sorting edges into rows", rows)
    yield _assigning(graph, assigner, 4 * sum(count for count, _, _ in rows))
    yield _numbering(job)
    yield _nodes(job)
    record = record_bytes(job.id_dtype, job.edge_id_dtype)
    stored = [(graph.num_edges(own), record, own.source) for own in graph.stored_types]
    yield _sorting(job, "writing edges", stored, with_attrs=True)
    stays = _stays(job)
    yield PlannedStep("hashing files", -(-stays // _HASH_BYTES), stays, stays * _HASHED / 1e9)


def _sorting(
    job: Job, name: str, sorts: Sequence[tuple[int, int, EdgeType]], *, with_attrs: bool = False
) -> PlannedStep:
    """sorts: for each the number of edges, the bytes of a record, and the user's edge type."""
    graph, tasks, read = job.graph, 0, 0
    for count, record, edge_type in sorts:
        edges = graph.edges[edge_type]
        tasks += len(dealt_pieces(job, edges)) + -(-count // sorted_at_once(job, count, record))
        read += input_bytes(edges) + count * record
        read += sum(map(rows_bytes, graph.source.edge_attrs(edge_type).values())) if with_attrs else 0
    return PlannedStep(name, tasks, read, sum(count for count, _, _ in sorts) * (_DEALT + _SORTED) / 1e9)


def _assigning(graph: StoredGraph, assigner: Assigner, rows_bytes: int) -> PlannedStep:
    options, reads, ns = graph.options, reads_of(graph, assigner), graph.total_nodes * _ASSIGNED
    fanouts = options.assumed_num_neighbors
    hops = max(map(len, fanouts.values()), default=0) if isinstance(fanouts, dict) else len(fanouts)
    turns = is_ranked_by_vip(graph, assigner) + (reads == "sampled")
    edges = sum(map(graph.num_edges, graph.stored_types))
    ns += turns * hops * options.num_parts * edges * _RANKED
    passes = turns * hops
    if reads == "neighbors":
        both = 2 * sum(each.num_edges for each in graph.edges.values())
        most = 1 + options.passes * (1 if isinstance(assigner, MetisAssigner) else 2)
        ns += both * (_PROPAGATED * most + (_CUT if isinstance(assigner, MetisAssigner) else 0))
        passes += most
    known = assigner.reads is not None and options.hotness != "presample"
    return PlannedStep("assigning nodes", 1, passes * rows_bytes, ns / 1e9 if known else None, alone=True)


def _numbering(job: Job) -> PlannedStep:
    graph, tasks, dtype = job.graph, 0, job.id_dtype
    for count in graph.num_nodes.values():
        pieces, at_once = node_ranges(job, count)
        tasks += len(pieces) + 2 * max(1, -(-count // at_once))
    read = graph.total_nodes * (8 + node_record(dtype).itemsize + number_record(dtype).itemsize)
    return PlannedStep("numbering nodes", tasks, read, graph.total_nodes * _NUMBERED / 1e9)


def _nodes(job: Job) -> PlannedStep:
    graph, read = job.graph, 0
    tasks = graph.options.num_parts  # which list their nodes
    for node_type in graph.num_nodes:
        for name, rows in graph.source.node_attrs(node_type).items():
            ranges, capacity = row_ranges(job, rows)
            tasks += len(ranges) + (0 if capacity is None else -(-len(rows) // capacity))
            turns = (1 if capacity is None else 2) + (name == "x" and graph.normalize != "none")
            read += rows_bytes(rows) * turns
    return PlannedStep("writing nodes", tasks, read, read * _WRITTEN / 1e9)


def _stays(job: Job) -> int:
    """Bytes of edges and attributes in the parts, before edges are merged."""
    graph, total = job.graph, 0
    for node_type, count in graph.num_nodes.items():
        total += count * sum(each.bytes_per_row for each in graph.storage.nodes[node_type].values())
    for own in graph.stored_types:
        total += graph.num_edges(own) * entry_bytes(graph, own, job.id_dtype, job.edge_id_dtype)
    return total


def _first_process(graph: StoredGraph, assigner: Assigner) -> int:
    options, nodes = graph.options, graph.total_nodes
    vip, reads = is_ranked_by_vip(graph, assigner), reads_of(graph, assigner)
    widest = _READING
    if vip or reads == "sampled":
        widest = max(widest, _VIP + (0 if matrix_bytes(graph) else 4 * options.num_parts))
    if reads == "neighbors":
        widest = max(widest, _STREAMING + _STREAMING_COLUMN * (len(graph.num_nodes) + len(graph.splits) + 1))
    total = _LIBRARIES + options.memory_bytes + nodes * widest
    if isinstance(assigner, MetisAssigner) and reads == "neighbors":
        total = max(total, _LIBRARIES + METIS_BYTES * 2 * sum(each.num_edges for each in graph.edges.values()))
    return total


def input_bytes(edges: EdgeList) -> int:
    """Returns the bytes that reading all edges of a type takes."""
    if isinstance(edges, KeptEdges):
        return input_bytes(edges.edges)
    if isinstance(edges, (FileEdges, EndFiles, CscEdges)):
        return sum(map(rows_bytes, edges.files))
    return 16 * edges.num_edges


def plan_conversion(source: TableSource, options: PartitionOptions) -> tuple[PartitionPlan, PartitionError | None]:
    """Plans the conversion of tables by the sizes of their files and what Parquet says of rows. Returns as `plan_partition`."""
    from glt_lightning.partition.sources.tables.job import TableJob  # imports pyarrow

    folder = source.future_folder
    there = next(each for each in folder.absolute().parents if each.exists())
    tables, nbytes = source.conversion()
    width = planned_width(options, nbytes)
    job = TableJob(tables, there / "run", task_memory(options, width))
    disk = sum(job.least_bytes(name) for name in job.names)
    plan = PartitionPlan(
        steps=tuple(_converting(job, name, width) for name in job.names),
        width=width,
        disk_bytes=disk,
        free_bytes=shutil.disk_usage(there).free,
        first_bytes=_LIBRARIES + job.memory_bytes,
        task_bytes=_LIBRARIES + job.memory_bytes,
        available_bytes=available_memory(),
        tables=folder,
    )
    return plan, _refusal(require_space, there, disk, "the conversion of these tables")


def _converting(job: TableJob, name: str, width: int) -> PlannedStep:
    files, table = job.files(name), job.table(name)
    size = sum(path.stat().st_size for path in files.paths)
    ns = _OF_NODES if isinstance(table, NodeTable) else _OF_EDGES
    packed = any(path.name.endswith(".gz") for path in files.paths)
    # Text is read to count rows and to find types, too; all of it again to fit encodings.
    turns = (3 if files.is_text else 1) + bool(table.encode)
    tasks = max(len(files.paths), min(4 * width, size >> 20))
    return PlannedStep(f"converting {files.what}", tasks, turns * size, None if packed else size * ns / 1e9)
