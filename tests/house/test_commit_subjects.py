"""Subjects of commits: the check of `.githooks/commit-msg`, as a hook and by hand."""

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / ".githooks" / "commit-msg"


def check(argument: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HOOK, argument], cwd=HOOK.parent, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("[sampler] Key draws by edge type and node", None),
        ("[gpu-check] Run every kernel", None),
        ('Revert "[sampler] A table"', None),
        ("[sampler] The draws are keyed by edge type", "imperative after the area, got 'The'"),
        ("[sampler] Sampler draws by edge type", "got 'Sampler'"),
        ("[sampler] Keys draws by edge type", "got 'Keys'"),
        ("[sampler] key draws by edge type", "got 'key'"),
        ("Key draws by edge type", "expected `[area] Verb ...`"),
        ("[sampler] Key draws by edge type.", "without a full stop"),
        ("[sampler] Key", "expected `[area] Verb ...`"),
    ],
)
def test_subject(tmp_path: Path, subject: str, reason: str | None) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text(f"\n# a comment of git\n{subject}\n\nThe body says why.\n")
    done = check(message)
    assert done.returncode == (0 if reason is None else 1)
    assert done.stderr == "" if reason is None else subject in done.stderr and reason in done.stderr


def test_a_range_of_commits(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    for subject in ("[a] Tables of before the check", "[a] Add a table", "[a] Tables again"):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", subject], check=True)

    def checked(commits: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([HOOK, commits], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert checked("HEAD~2..HEAD~1").returncode == 0
    done = checked("HEAD~2..")
    assert (done.returncode, done.stderr.count("subject: ")) == (1, 1)
    assert "[a] Tables again" in done.stderr
