"""How a job ends: with the status and the last lines of what failed first, and nothing left. Agents are real; what they start is
a shell script in place of Python."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.launch import LaunchConfig
from glt_lightning.launch.job import LaunchedJob, here
from glt_lightning.launch.messages import MergedLog
from glt_lightning.launch.preflight import Preflight
from glt_lightning.launch.remote import LaunchError, Remote

_PYTHON = """#!/bin/sh
case "$*" in
  *health*) [ ! -e unhealthy ] || exit 1;;
  *serve*) echo serving; echo x >> served; [ "$(wc -l < served)" -gt "$DEATHS" ] && exec sleep 600
    while [ ! -e training ]; do sleep 0.02; done; exit 9;;
  *) touch training; . ./train;;
esac
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("python").write_text(_PYTHON)
    Path("python").chmod(0o755)
    Path("own.py").write_text("")
    Path("run.yaml").write_text("{}")


async def _nothing(_remotes: Sequence[Remote]) -> None:
    """No check."""


def job(
    train: str, log: io.StringIO, clock: Callable[[], float] = time.monotonic, deaths: int = 0, **more: Any
) -> LaunchedJob:
    Path("train").write_text(train)
    given: dict[str, Any] = {
        "command": "own.py",
        "engine": "here",
        "ranks": "script",
        "hosts": ["localhost"],
        "defaults": {"python": os.path.abspath("python"), "dir": ".", "env": {"DEATHS": str(deaths)}},
        "limits": {"stop_s": 2},
    }
    return LaunchedJob(LaunchConfig(**given | more), "runs/x", MergedLog(Path("logs"), log), _nothing, clock=clock)


def ended(train: str, **more: Any) -> tuple[int, list[str]]:
    log = io.StringIO()
    status = asyncio.run(job(train, log, **more).run())
    return status, log.getvalue().splitlines()


_SERVED = {"servers": [{"host": "127.0.0.1"}], "run_config": "run.yaml"}


def test_a_job_ends_well() -> None:
    status, lines = ended("echo trained", **_SERVED)
    assert status == 0
    assert sorted(lines) == [
        "127.0.0.1:server0| serving",
        "launch| 1 host to train, 1 graph server",
        "localhost| trained",
    ]


def test_the_first_failure_is_the_last_word() -> None:
    status, lines = ended("for n in $(seq 50); do echo line $n; done; exit 7")
    assert status == 7
    assert lines[-41:] == [
        *(f"launch| localhost: line {n}" for n in range(11, 51)),
        "launch| error: localhost: status 7.",
    ]


def test_a_rank_that_is_killed_names_the_memory_of_its_host() -> None:
    status, lines = ended("sleep 0.4; kill -9 $$", limits={"stop_s": 2, "heartbeat_s": 0.1})
    assert status == 137
    assert re.search(r"status 137 \(killed; [0-9.]+ .?B of memory were available at the last heartbeat\)\.$", lines[-1])


def test_what_cannot_be_started() -> None:
    status, lines = ended("", defaults={"python": "/no/python", "dir": "."})
    assert status == 127
    assert lines[-1] == "launch| error: localhost: /no/python: No such file or directory."


def test_a_server_is_started_again() -> None:
    status, lines = ended("while [ $(wc -l < served) -lt 3 ]; do sleep 0.05; done", deaths=2, **_SERVED)
    assert status == 0
    assert lines.count("launch| 127.0.0.1:server0: the graph server ended (status 9) and starts again") == 2


def test_restarts_of_a_server_are_counted_within_an_hour() -> None:
    status, lines = ended("sleep 600", deaths=100, restarts={"servers": 3}, **_SERVED)
    assert status == 9
    assert lines[-1] == (
        "launch| error: 127.0.0.1:server0: the graph server ended after 3 restarts in an hour (restarts.servers): status 9."
    )
    for name in ("served", "training"):
        Path(name).unlink()
    ticks = iter(range(0, 10**9, 3601))  # each look at the clock is an hour later
    train = "while [ $(wc -l < served) -lt 8 ]; do sleep 0.05; done"
    limits = {"stop_s": 2, "run_s": 1e12}
    assert ended(train, deaths=7, restarts={"servers": 3}, clock=lambda: next(ticks), limits=limits, **_SERVED)[0] == 0


def test_a_server_that_is_not_healthy() -> None:
    Path("unhealthy").touch()
    status, lines = ended("echo never", **_SERVED)
    assert status == 1
    assert "no healthy graph server at 127.0.0.1:18800 after 120 s (limits.start_s)." in lines[-1]
    assert not any("never" in line for line in lines)


def test_the_job_is_started_again() -> None:
    status, lines = ended("echo x >> tries; [ $(wc -l < tries) -gt 2 ] || exit 5", restarts={"job": 3})
    assert status == 0
    assert sum("starts again from its last checkpoint" in line for line in lines) == 2
    assert ended("exit 5", restarts={"job": 1})[0] == 5


def test_what_fails_before_the_start_is_not_tried_again() -> None:
    Path("unhealthy").touch()
    status, lines = ended("echo never", restarts={"job": 3}, **_SERVED)
    assert status == 1
    assert not any("starts again" in line for line in lines)


def test_a_job_that_takes_too_long() -> None:
    status, lines = ended("sleep 600", limits={"stop_s": 2, "run_s": 0.5})
    assert status == 124
    assert lines[-1] == "launch| error: the job took longer than limits.run_s (0.5 s)"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_once_and_twice(times: int) -> None:
    """Once: processes may end in order. Twice: they are killed, also one that takes no notice of SIGTERM."""
    log = io.StringIO()
    waits = "trap 'echo in order; exit 0' TERM" if times == 1 else "trap '' TERM"
    running = job(
        f"{waits}; echo ready; while true; do sleep 0.05; done", log, limits={"stop_s": 2 if times == 1 else 600}
    )

    def interrupt() -> None:
        for needed in ("ready", "once more ends it at once")[:times]:
            deadline = time.monotonic() + 20
            while needed not in log.getvalue() and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert asyncio.run(running.run()) == 130
    thread.join()
    assert ("in order" in log.getvalue()) == (times == 1)


def test_ctrl_c_twice_where_a_host_does_not_answer() -> None:
    """The launcher does not wait for ``stop_s``, nor for the agent."""
    log, silent = io.StringIO(), ["/bin/sh", "-c", "read begin; touch called; exec sleep 600"]
    running = job("", log, engine="ssh", ssh_command=silent, limits={"stop_s": 600, "start_s": 600})

    def interrupt() -> None:
        for ready in (lambda: Path("called").exists(), lambda: "once more ends it at once" in log.getvalue()):
            while not ready():
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    begin = time.monotonic()
    assert asyncio.run(running.run()) == 130
    thread.join(20)
    assert time.monotonic() - begin < 60


def test_an_agent_that_does_not_start() -> None:
    status, lines = ended("", engine="ssh", ssh_command=["/bin/sh", "-c", "echo no route to host >&2; exit 255"])
    assert status == 1
    assert lines[-1] == "launch| error: localhost: the agent ended with status 255: no route to host."
    other = "echo /opt/py: No module named glt_lightning >&2; exit 1"
    assert "Install glt_lightning for " in ended("", engine="ssh", ssh_command=["/bin/sh", "-c", other])[1][-1]
    noise = "echo Welcome to this host; sleep 600"
    assert (
        "its answer is no message of an agent" in ended("", engine="ssh", ssh_command=["/bin/sh", "-c", noise])[1][-1]
    )


_LIAR = """
import json, sys
answers = json.loads(sys.argv[1])
def say(text):
    print(text, flush=True)
say(json.dumps({"op": "hello", "protocol": 1}))
for line in sys.stdin:
    message = json.loads(line)
    if message["op"] == "stop":
        sys.exit()
    if message["op"] in answers:
        say(answers[message["op"]])
    elif message["op"] == "write" and not message["more"]:
        say(json.dumps({"op": "written", "path": message["path"]}))
"""


@pytest.mark.parametrize(
    ("op", "answer", "named"),
    [
        ("start", '{"op": "lines", "id": "trainer"}', "lines: text is None"),
        ("start", '{"op": "lines", "text": "x"}', "lines: id is None"),
        ("start", r'{"op": "lines", "id": "trainer", "text": "\ud800"}', "lines: text is"),
        ("start", '{"op": "exited", "id": "trainer"}', "exited: status is None"),
        ("start", '{"op": "exited", "id": [], "status": 0}', r"exited: id is \[\]"),
        ("start", '{"op": "exited", "id": "trainer", "status": "0"}', "exited: status is '0'"),
        ("start", '{"op": "exited", "id": "trainer", "status": 1e400}', "exited: status is inf"),
        ("start", '{"op": "exited", "id": "trainer", "status": 1, "failure": [1]}', "exited: failure is"),
        ("start", '{"op": "exited", "id": "other", "status": 0}', "exited: 'other' was not started"),
        ("start", '{"op": "refused"}', "refused: reason is None"),
        ("start", '{"op": "silent", "reason": {}}', r"silent: reason is \{\}"),
        ("start", '{"op": "what"}', "unknown op 'what'"),
        ("beat", '{"op": "beat", "wall": NaN}', "NaN is no number"),
        ("beat", '{"op": "beat", "wall": 1, "memory_bytes": "much"}', "beat: memory_bytes is 'much'"),
        ("write", '{"op": "written"}', "written: path is None"),
        ("write", '{"op": "written", "path": "/etc/passwd"}', "written: '/etc/passwd' was not sent"),
    ],
)
def test_a_host_that_lies_is_named_with_its_answer(op: str, answer: str, named: str) -> None:
    """Before it would be taken for silent, and before a deadline ends the job."""
    ssh = [sys.executable, "-c", _LIAR, json.dumps({op: answer})]
    limits = {"stop_s": 1, "heartbeat_s": 1000, "start_s": 1000}
    status, lines = ended("", engine="ssh", ssh_command=ssh, limits=limits)
    assert status == 1
    assert re.match(f"launch\\| error: localhost: its answer is no message of an agent: .*{named}", lines[-1]), lines


_FACTS = {
    "versions": {"Python": "3", "glt_lightning": "1", "torch": "2", "lightning": "2", "wire protocol": "3"},
    "partition": None,
    "free_bytes": 1 << 40,
    "open_files": 65536,
}
_LISTENS = {"listeners": [{"address": None, "port": 1, "tls": False}]}
_ODD = "gave no such answer as expected: "


@pytest.mark.diagonal(most=4)
@pytest.mark.parametrize(
    ("facts", "listens", "greets", "named"),
    [
        ("{}", None, None, f"facts {_ODD}it: versions is None"),
        ("null", None, None, f"facts {_ODD}it is None"),
        ("{" * 9, None, None, f"facts {_ODD}no JSON"),
        ("", None, None, f"facts {_ODD}no JSON"),
        ("NaN", None, None, "NaN is no number"),
        (_FACTS | {"versions": []}, None, None, r"it: versions is \[\]"),
        (_FACTS | {"free_bytes": "much"}, None, None, "it: free_bytes is 'much'"),
        (_FACTS | {"partition": {}}, None, None, "it: partition: options_hash is None"),
        (_FACTS | {"open_files": 10**400}, None, None, "it: open_files is 1000"),
        (_FACTS, "{}", None, f"listen {_ODD}it: listeners is None"),
        (_FACTS, '{"listeners": [3]}', None, "it: listeners is 3"),
        (_FACTS, "{nonsense", None, f"listen {_ODD}no JSON"),
        (_FACTS, _LISTENS, "{}", f"greet {_ODD}it: errors is None"),
        (_FACTS, _LISTENS, '{"errors": [null], "marked": null}', "it was to greet 0 ports, and answers for 1"),
    ],
)
def test_an_answer_to_the_checks_that_is_none_is_named(facts: Any, listens: Any, greets: Any, named: str) -> None:
    for name, answer in (("facts", facts), ("listens", listens), ("greets", greets)):
        Path(name).write_text(answer if isinstance(answer, str) else json.dumps(answer))
    Path("python").write_text(_ANSWERS)
    log = io.StringIO()
    given = job("", log)
    given._check = Preflight(given._config, given._log).check
    assert asyncio.run(given.run()) == 1
    assert re.match(f"launch\\| error: localhost: .*{named}", log.getvalue().splitlines()[-1]), log.getvalue()


_ANSWERS = """#!/bin/sh
case "$*" in
  *facts) cat facts; echo;;
  *listen) cat listens; echo; exec sleep 60;;
  *greet) cat greets; echo;;
esac
"""


def test_engine_here_starts_what_is_here() -> None:
    config = LaunchConfig(command="own.py", hosts=["192.0.2.77", "127.0.0.1"], engine="here")
    assert [machine.host for machine in here(config)] == ["127.0.0.1"]
    with pytest.raises(LaunchError, match=r"none of 192.0.2.77 is an address of this host"):
        here(LaunchConfig(command="own.py", hosts=["192.0.2.77"], engine="here"))
