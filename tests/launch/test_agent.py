"""The agent ends all that it started, whatever ends it, and loses no output."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from glt_lightning.launch.children import descendants
from glt_lightning.launch.messages import FROM_AGENT, MOST_BYTES, PROTOCOL, MessageError, decode, encode
from tests.helpers.family import settle
from tests.launch.agents import talking_to

# A process that ignores SIGTERM, as do its three grandchildren, which have sessions of their own and lose their parent.
_STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(600)
"""


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and pid in descendants(1)]


@pytest.mark.parametrize("end", ["eof", "stop", "kill", "silence", "sigterm", "sigkill"])
def test_nothing_is_left(end):
    with talking_to(stop_s=0.2, silence_s=1.0 if end == "silence" else 60.0) as agent:
        names = [f"p{n}" for n in range(2)]
        for name in names:
            agent.start(name, sys.executable, "-c", "import time; time.sleep(600)" if end == "sigkill" else _STUBBORN)
        if end == "sigkill":  # the kernel's part: those that do not ignore SIGTERM
            for name in names:
                agent.until("started", id=name)
        else:
            while sorted(agent.text) != names:
                agent.until("lines")
        found = agent.family()
        assert len(found) == (2 if end == "sigkill" else 8)
        if end == "eof":
            agent.hang_up()
        elif end in ("stop", "kill"):
            agent.send(end)
        elif end == "silence":
            assert "silent for 1 s" in agent.until("silent")["reason"]
        else:
            agent.popen.send_signal(signal.SIGKILL if end == "sigkill" else signal.SIGTERM)
        agent.popen.wait(20)
        assert settle(lambda: alive(found), grace_s=5) == []


@pytest.mark.slow
def test_the_launcher_ends_at_any_message(tmp_path):
    """After each message, and in the middle of each: no process is left, nor a file that is not complete."""
    argv = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    start = {"argv": argv, "env": {}, "cwd": str(tmp_path), "input": "x", "failure": None}
    piece = {"data": "eHl6", "mode": 0o600}
    sent = [
        encode("begin", protocol=PROTOCOL, stop_s=5.0, silence_s=60.0),
        encode("write", path=str(tmp_path / "large"), more=True, **piece),
        encode("write", path=str(tmp_path / "small"), more=False, **piece),
        encode("start", id="one", **start),
        encode("beat", sent=1.0),
        encode("start", id="two", **start),
        encode("end", id="one"),
        encode("stop"),
    ]
    cuts = [b"".join(sent[:n]) for n in range(1, len(sent) + 1)]
    cuts += [b"".join(sent[:n]) + sent[n][: len(sent[n]) // 2] for n in (1, 3, 7)]
    for given in cuts:
        done = subprocess.run(
            [sys.executable, "-m", "glt_lightning", "agent"], input=given, capture_output=True, timeout=30
        )
        assert (done.returncode, done.stderr) == (0, b""), given
        said = [decode(line, FROM_AGENT) for line in done.stdout.splitlines()]
        begun, ended = ([each.get("pid") for each in said if each["op"] == op] for op in ("started", "exited"))
        assert len(begun) == len(ended)
        assert alive(begun) == []
        assert {path.name for path in tmp_path.iterdir()} <= {"small"}


def test_output_and_status_of_each_process(tmp_path):
    report = tmp_path / "failure.json"
    code = "import sys; print('a' * 100_000); sys.stdout.write('no end'); sys.exit(7)"
    with talking_to() as agent:
        report.write_text(json.dumps({"rank": 5}))
        agent.start("one", sys.executable, "-c", code, cwd=str(tmp_path), failure="failure.json")
        ended = agent.until("exited", id="one")
        assert (ended["status"], ended["failure"]) == (7, {"rank": 5})
        assert agent.text["one"] == "a" * 100_000 + "\nno end"
        agent.start(
            "two", "/bin/sh", "-c", 'cat; echo "$WORD"; kill -9 $$', input="given\n", env={"WORD": "a b'\"$c é"}
        )
        assert agent.until("exited", id="two")["status"] == 128 + signal.SIGKILL
        assert agent.text["two"] == "given\na b'\"$c é\n"
        agent.start("three", "/no/such/program")
        assert agent.until("exited", id="three") == {
            "op": "exited",
            "id": "three",
            "status": 127,
            "reason": "/no/such/program: No such file or directory",
            "failure": None,
        }


def test_much_output_arrives_whole_and_in_order():
    """Twenty megabytes, to a launcher that reads late: the process waits, and heartbeats are answered."""
    code = "for n in range(400_000): print(f'{n:050}')"
    with talking_to() as agent:
        agent.start("loud", sys.executable, "-c", code)
        agent.send("beat", sent=1.5)
        agent.until("exited", id="loud")
        lines = agent.text["loud"].split()
    assert lines == [f"{n:050}" for n in range(400_000)]


def test_a_file_appears_whole(tmp_path):
    with talking_to() as agent:
        path = tmp_path / "a folder" / "file é"
        for number, more in enumerate([True, False]):
            data = base64.b64encode(bytes([number]) * 3).decode()
            agent.send("write", path=str(path), data=data, mode=0o600, more=more)
        agent.until("written", path=str(path))
        assert path.read_bytes() == bytes([0, 0, 0, 1, 1, 1])
        assert path.stat().st_mode & 0o777 == 0o600
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        agent.send("write", path="/proc/none/file", data="", mode=0o600, more=False)
        assert "No such file" in agent.until("refused")["reason"]


def test_lines_that_are_no_messages_are_refused():
    draw = random.Random(3)
    lines = [b"{", b"[]", b"nonsense", b"\xff\xfe", b'{"op": 3}', b'{"op": "what"}', b'{"op":"start"}', b"[" * 100_000]
    lines += [b'{"op":"start","id":"x","argv":["a\\u0000"],"cwd":"/","env":{}}', b'{"op":"write","path":1}']
    start = {"op": "start", "id": "x", "argv": ["true"], "cwd": "/", "env": {}}
    write = {"op": "write", "path": "x", "data": "", "mode": 0, "more": False}
    begin = {"op": "begin", "protocol": PROTOCOL, "stop_s": 5, "silence_s": 60}
    long = [0, -1, True, "5", None, float("nan"), float("inf"), 1e308, 10**400, 10**30]
    envs = [{"A=B": "1"}, {"": "1"}, {"A": "\0"}, {"A": "\udfff"}, {"A": 1}, [["A", "1"]]]
    for message, field, wrongs in [
        (start, "id", ["a\0", "\ud800", None, 3]),
        (start, "cwd", ["a\0", "\ud800", "~nosuchuser", {}]),
        (start, "argv", [[], [""], "true", ["\ud800"], ["~nosuchuser/x"], [["true"]]]),
        (start, "env", envs),
        (start, "input", ["\ud800", 3]),
        (start, "failure", ["a\0", "\ud800", 3]),
        (write, "path", ["a\0", "\ud800", "~nosuchuser", "~nosuchuser/x", None]),
        (write, "mode", [10**40, "7", 1.5, True, None]),
        (write, "data", ["?", "\ud800", None]),
        ({"op": "end"}, "id", [None, [], {}]),
        ({"op": "beat"}, "sent", ["1", 10**400, float("nan"), float("inf"), {}]),
        (begin, "stop_s", long),
        (begin, "silence_s", long),
        (begin, "protocol", [10**400, None, "1"]),
    ]:
        lines += [json.dumps(message | {field: wrong}).encode() for wrong in wrongs]
    lines.append(b'{"op":"beat","sent":1e999}')
    lines += [bytes(draw.randrange(11, 256) for _ in range(40)) for _ in range(20)]
    with talking_to() as agent:
        for line in lines:
            agent.send_bytes(line + b"\n")
            agent.until("refused")
        agent.send_bytes(b"x" * (MOST_BYTES + 2) + b"\n")
        agent.until("refused")
        agent.send("beat", sent=2.5)
        assert agent.until("beat")["sent"] == 2.5
    with pytest.raises(MessageError, match="at most"):
        decode(b" " * (MOST_BYTES + 1), FROM_AGENT)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        ("ln -s /dev/zero f", None),
        ("mkfifo f", None),
        ("mkdir f", None),
        ("ln -s /dev/tty f", None),
        ("printf '[%.0s' $(seq 60000) > f", None),
        ("""echo '{"rank": {}, "reason": "x"}' > f""", None),
        ("""echo '{"rank": NaN}' > f""", None),
        ("echo '[1]' > f", None),
        ("""echo '{"rank": 3, "reason": "x", "more": [1]}' > f""", {"rank": 3, "reason": "x"}),
    ],
)
def test_what_a_rank_writes_about_its_failure_is_not_waited_for(make, told, tmp_path):
    with talking_to() as agent:
        agent.start("train", "sh", "-c", f"{make}; exit 7", cwd=str(tmp_path), failure="f")
        ended = agent.until("exited")
        assert (ended["status"], ended["failure"]) == (7, told)


def test_an_agent_imports_little():
    code = "import sys; import glt_lightning.launch.agent; print(sorted({'numpy', 'torch', 'yaml'} & set(sys.modules)))"
    with talking_to() as agent:
        agent.start("imports", sys.executable, "-c", code, env={"PYTHONPATH": os.pathsep.join(sys.path)})
        agent.until("exited")
        assert agent.text["imports"] == "[]\n"
