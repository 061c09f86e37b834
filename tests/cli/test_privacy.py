"""`relive forget` and `relive audit`."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from relive.cli.app import app
from relive.experience import Feedback, Transition
from relive.storage import SqliteStorage


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def call(*arguments: object, answer: str = "") -> Done:
    """Runs the program in this process."""
    done = CliRunner(env={"RELIVE_FILE": None}).invoke(app, [str(argument) for argument in arguments], input=answer)
    return Done(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "agent.db"
    with SqliteStorage(path) as store:
        store.append(
            [
                Transition(state=f"a word with {name}", action="ok", agent=agent, episode_id=episode)
                for name, agent, episode in (("Alice", "red", "one"), ("Bob", "red", "two"), ("alice", "blue", "two"))
            ]
        )
        store.feedback(Feedback(experience_id=2, source="judge", reward=0.5, comment="fair"))
    return path


def left(path: Path) -> list[int]:
    with SqliteStorage(path, readonly=True) as store:
        return [stored.id for stored in store.query()]


def test_forget_takes_out_what_matches_and_says_how_much(path: Path) -> None:
    done = call("forget", path, "--match", "ALICE", "--yes")
    assert done.returncode == 0, done.stderr
    assert "Forgot 2 experiences of 2 episodes and 0 pieces of feedback" in done.stdout
    assert "Copies that were made in another way are not known here" in done.stdout
    assert left(path) == [2]
    assert b"alice" not in b"".join(file.read_bytes() for file in path.parent.iterdir()).lower()


def test_forget_asks_first_and_does_nothing_without_a_yes(path: Path) -> None:
    for answer in ("n\n", "", "\n"):
        done = call("forget", path, "--agent", "red", answer=answer)
        assert done.returncode == 1
        assert "Forget 2 of 3 experiences" in done.stderr
        assert "Nothing was forgotten" in done.stderr
    assert len(left(path)) == 3
    assert call("forget", path, "--agent", "red", "--episode", "two", answer="y\n").returncode == 0
    assert left(path) == [1, 3]


def test_forget_must_be_told_what_and_makes_no_store(path: Path, tmp_path: Path) -> None:
    assert call("forget", path, "--yes").returncode == 2
    missing = call("forget", tmp_path / "none.db", "--agent", "a", "--yes")
    assert missing.returncode == 1
    assert not (tmp_path / "none.db").exists()


def test_forget_and_audit_speak_to_programs(path: Path) -> None:
    report = json.loads(call("forget", path, "--episode", "two", "--yes", "--json").stdout)
    assert (report["experiences"], report["feedback"], report["copies"]) == (2, 1, [])
    entries = [json.loads(line) for line in call("audit", path, "--json").stdout.splitlines()]
    assert [entry["action"] for entry in entries] == ["forget", "feedback"]
    assert entries[0]["before"] == {"experiences": 2, "feedback": 1}
    assert entries[1]["who"] == "judge"


def test_forget_names_the_backups_that_still_hold_it(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert call("backup", path, copy).returncode == 0
    assert str(copy) in call("forget", path, "--agent", "red", "--yes").stdout


def test_audit_shows_who_did_what_newest_first(path: Path) -> None:
    with SqliteStorage(path) as store:
        store.feedback(Feedback(experience_id=2, source="boss", reward=1.0))
    shown = call("audit", path).stdout
    assert 0 < shown.index("boss") < shown.index("judge")
    assert "experience 2" in shown
    only = call("audit", path, "--who", "judge", "--limit", 1, "--oldest-first")
    assert "boss" not in only.stdout
    assert call("audit", path, "--action", "forget", "--json").stdout == ""
