"""Jobs that SLURM, Kubernetes or Ray starts: their options, and the text of files for the first two, made from `templates/`.
Words of commands are quoted here; a value that is known only on a node or in a pod is a shell variable."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from glt_lightning.base import OptionError, at_least
from glt_lightning.launch.hosts import check_port

# Options of sbatch that other options of the launch file set. A second value, in `slurm.options`, would contradict them.
_SET_BY_US = {
    "--ntasks-per-node": "devices",
    "--nodes": "slurm.nodes",
    "-N": "slurm.nodes",
    "--ntasks": "slurm.nodes and devices",
    "-n": "slurm.nodes and devices",
    "--gpus-per-node": "slurm.gpus",
    "--job-name": "name",
    "-J": "name",
    "--signal": "limits.stop_s",
    "--output": "name",
    "-o": "name",
}
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class LaunchSlurm:
    """A job of SLURM.

    Attributes:
        nodes: Nodes that train. With command ``partition`` an array of ``nodes`` x ``devices`` processes works, wherever there is
            room.
        servers: Graph servers, on the first nodes of the job, beside the trainers. 0: the nodes that train hold the graph.
        server_port: Port of the graph servers.
        gpus: Ask for a GPU for each trainer process.
        cpus_per_task: Cores of each trainer process. None: the cluster's default.
        time: Time limit of the job, as sbatch takes it. None: the cluster's default.
        partition: SLURM's partition to run in. None: the cluster's default.
        account: Account that the job is charged to.
        options: Further options of sbatch, such as ``--constraint=a100``.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LaunchSlurm(nodes=2, gpus=True, time="12:00:00").server_port
        18800
    """

    nodes: int = 1
    servers: int = 0
    server_port: int = 18800
    gpus: bool = False
    cpus_per_task: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    options: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        at_least("slurm.nodes", self.nodes, 1)
        at_least("slurm.servers", self.servers, 0)
        check_port("slurm.server_port", self.server_port)
        if self.cpus_per_task is not None:
            at_least("slurm.cpus_per_task", self.cpus_per_task, 1)
        if self.servers > self.nodes:
            raise OptionError(
                f"slurm.servers: {self.servers} graph servers need as many nodes, and slurm.nodes is {self.nodes}. Each runs "
                "on a node of its own, beside the trainers."
            )
        for name, text in (("time", self.time), ("partition", self.partition), ("account", self.account)):
            if text is not None and not re.fullmatch(r"\S+", str(text)):
                raise OptionError(f"slurm.{name}: expected one word, got {text!r}.")
        for option in self.options:
            if not re.fullmatch(r"--?[A-Za-z][^\n]*", str(option)):
                raise OptionError(
                    f"slurm.options: expected options of sbatch such as --constraint=a100, got {option!r}."
                )

    def check_array(self) -> None:
        """Raises `OptionError` for an option of sbatch that would change a job array."""
        for option in self.options:
            name = re.split(r"[= ]", option)[0]
            if name in (*_SET_BY_US, "--array", "-a"):
                raise OptionError(
                    f"slurm.options: {name}: a job array for partition has slurm.nodes x devices elements of one task each. Drop "
                    "the option, and set these."
                )

    def check(self, tasks_per_node: int) -> None:
        """Raises `OptionError` for an option of sbatch that another option of the launch file sets."""
        for option in self.options:
            name, _, value = option.replace("=", " ", 1).partition(" ")
            if name not in _SET_BY_US:
                continue
            ours = f"{tasks_per_node}" if name == "--ntasks-per-node" else "what it says"
            raise OptionError(
                f"slurm.options: {name} {value.strip()} is set by {_SET_BY_US[name]}, to {ours}. Trainer processes of a node "
                "and tasks must be as many. Drop the option, and set that."
            )


@dataclass(frozen=True, kw_only=True)
class LaunchKubernetes:
    """A JobSet of Kubernetes.

    Attributes:
        image: Container image with glt_lightning in it.
        nodes: Pods that train. With command ``partition`` there are ``nodes`` x ``devices`` pods of one process.
        servers: Pods of graph servers. 0: the pods that train hold the graph.
        server_port: Port of the graph servers.
        gpus: Ask for a GPU for each trainer process.
        namespace: Namespace of the job. None: that of kubectl.
        volumes: Claims of persistent volumes, and where they are mounted in every pod: ``{data: /data}``.
        trainer_resources: What a pod that trains or partitions requests beside GPUs, such as ``{cpu: 8, memory: 64Gi}``.
        server_resources: What a pod of a graph server requests.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LaunchKubernetes(image="registry/glt:1", nodes=2, servers=1, volumes={"data": "/data"}).gpus
        False
    """

    image: str
    nodes: int = 1
    servers: int = 0
    server_port: int = 18800
    gpus: bool = False
    namespace: str | None = None
    volumes: dict[str, str] = field(default_factory=dict)
    trainer_resources: dict[str, int | float | str] = field(default_factory=dict)
    server_resources: dict[str, int | float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\S+", self.image):
            raise OptionError(f"kubernetes.image: expected the name of an image, got {self.image!r}.")
        at_least("kubernetes.nodes", self.nodes, 1)
        at_least("kubernetes.servers", self.servers, 0)
        check_port("kubernetes.server_port", self.server_port)
        for claim, path in self.volumes.items():
            if not _CLAIM.fullmatch(str(claim)) or not str(path).startswith("/"):
                raise OptionError(
                    f"kubernetes.volumes: expected claims and absolute paths, such as {{data: /data}}; got {claim}: {path}."
                )


@dataclass(frozen=True, kw_only=True)
class LaunchRay:
    """A job on a cluster of Ray.

    Attributes:
        address: Address of the cluster. None: the one that this program is in, or that ``RAY_ADDRESS`` names.
        nodes: Nodes that train.
        servers: Graph servers, each on a node of its own, beside the trainers. 0: the nodes that train hold the graph.
        server_port: Port of the graph servers.
        gpus: Ask for a GPU for each trainer process. None: if the trainer's accelerator is ``gpu`` or ``cuda``, or ``auto`` and
            the cluster has as many GPUs.
        cpus_per_task: CPUs that Ray reserves for each trainer process.
        storage: Folder or URL for checkpoints and metrics, which all nodes share.
        every_n_steps: Steps between checkpoints within an epoch. None: only at its end.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LaunchRay(nodes=2, storage="s3://bucket/runs", every_n_steps=500).cpus_per_task
        1
    """

    storage: str
    address: str | None = None
    nodes: int = 1
    servers: int = 0
    server_port: int = 18800
    gpus: bool | None = None
    cpus_per_task: int = 1
    every_n_steps: int | None = None

    def __post_init__(self) -> None:
        at_least("ray.nodes", self.nodes, 1)
        at_least("ray.servers", self.servers, 0)
        check_port("ray.server_port", self.server_port)
        at_least("ray.cpus_per_task", self.cpus_per_task, 1)
        if self.every_n_steps is not None:
            at_least("ray.every_n_steps", self.every_n_steps, 1)
        if "://" not in self.storage and not self.storage.startswith("/"):
            raise OptionError(
                f"ray.storage: expected an absolute path or a URL that all nodes share, got {self.storage!r}."
            )


def check_engine(engine: str, given: Mapping[str, Any], listed: Sequence[Any], defaults: Any) -> None:
    """Checks that a launch file names hosts in only one way. given: groups of SLURM and Kubernetes, by engine.

    listed: hosts and servers of the file.  defaults: the group ``defaults``.  Raises `OptionError`.
    """
    for name, group in given.items():
        if engine == name and group is None:
            more = {"kubernetes": "image: IMAGE, ", "ray": "storage: FOLDER, "}.get(name, "")
            raise OptionError(f"{name}: the engine needs to know the size of the job. Set {name}: {{{more}nodes: N}}.")
        if engine != name and group is not None:
            raise OptionError(f"{name}: the engine is {engine}. Set engine: {name}, or drop the group.")
    if engine not in given:
        return
    if listed:
        raise OptionError(
            f"hosts, servers: with engine {engine} the cluster chooses the hosts. Drop them, and set {engine}.nodes and "
            f"{engine}.servers."
        )
    if defaults.user is not None or defaults.port is not None or not isinstance(defaults.devices, int):
        raise OptionError(
            f"defaults: with engine {engine} nobody logs in to a host, and the cluster assigns GPUs. Drop user and port, and "
            "give devices as a number."
        )


def shell_word(word: str, variables: Mapping[str, str]) -> str:
    """Quotes a word for the shell. variables: placeholder in the word -> name of the shell variable to insert there."""
    pieces = re.split("(" + "|".join(map(re.escape, variables)) + ")", word) if variables else [word]
    quoted = (f'"${variables[piece]}"' if piece in variables else shlex.quote(piece) for piece in pieces if piece)
    return "".join(quoted) or "''"


def shell_json(value: Any, variables: Mapping[str, str], whole: Sequence[str] = ()) -> str:
    """Writes a value as JSON, quoted as one word of the shell. whole: placeholders whose variables contain JSON themselves, and
    so replace a whole value, not a part of a text."""
    text = json.dumps(value)
    for mark in whole:
        text = text.replace(json.dumps(mark), mark)
    for mark in variables:
        text = text.replace(json.dumps(mark)[1:-1], mark)
    return shell_word(text, variables)


def shell_lines(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """Writes a command for the shell, with each option on a line of its own."""
    text = ""
    for word in words:
        space = " \\\n    " if word.startswith("--") else " "
        text += (space if text else "") + shell_word(word, variables)
    return text


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Fills in a template of `templates/`. Comments in it are (# like this #), since ``{#`` has a meaning in bash."""
    import jinja2  # for the few launches that write a file

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="(#",
        comment_end_string="#)",
    )
    made.filters |= {"word": lambda value: shlex.quote(str(value)), "yaml": _yaml_line, "block": _yaml_block}
    return made.get_template(template).render(values)


def _yaml_line(value: Any) -> str:
    """Writes a value as YAML on one line."""
    style = '"' if isinstance(value, str) and "\n" in value else None
    return _yaml(value, style)


def _yaml_block(text: str, column: int) -> str:
    """Writes a text as YAML, with its lines on lines of their own. column: of the key, or of the "-", before it."""
    first, *lines = _yaml(text, "|" if "\n" in text else None).split("\n")
    return "\n".join([first, *(" " * column + line if line else "" for line in lines)])


def _yaml(value: Any, style: str | None) -> str:
    text = yaml.safe_dump(value, default_style=style, default_flow_style=True, width=float("inf"))
    return str(text).removesuffix("...\n").removesuffix("\n")
