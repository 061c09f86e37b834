"""`relive lessons`, `relive reflect` and `relive inject`, in this process."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import relive
from relive import Transition
from relive.cli.app import app
from relive.cli.commands import register
from relive.playbook.book import Playbook

if not app.registered_commands:
    register(app)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.db"
    with relive.open(path) as memory:
        book = Playbook(memory)
        book.add("Name the day of delivery", when="somebody asks where a parcel is")
        book.approve(1)
        for number in range(40):
            good = number % 2 == 0
            memory.add(
                Transition(
                    state={"messages": [{"role": "user", "content": f"Where is parcel {number}?"}]},
                    action="look_up" if good else "guess",
                    agent="support",
                    outcome="success" if good else "failure",
                )
            )
    return path


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def test_lessons_are_listed_shown_approved_and_retired(file: Path) -> None:
    run("lessons", "add", "Weigh the parcel", file, "--agent", "support")
    assert "Weigh the parcel" in run("lessons", "list", file, "--status", "candidate")
    run("lessons", "approve", 2, file)
    run("lessons", "retire", 2, file, "--reason", "It costs time.")
    shown = json.loads(run("lessons", "show", 2, file, "--json"))
    assert (shown["status"], shown["reason"], shown["agent"]) == ("retired", "It costs time.", "support")
    assert [one["change"] for one in shown["history"]] == ["add", "approve", "retire"]
    listed = [json.loads(line) for line in run("lessons", "list", file, "--json").splitlines()]
    assert [one["id"] for one in listed] == [1, 2]
    assert listed[0]["tokens"] > 0
    assert "no lesson 9" in run("lessons", "show", 9, file, code=1)


def test_reflection_finds_what_successes_do_and_writes_candidates(file: Path) -> None:
    assert "choice: look_up" in run("reflect", file, "--dry-run")
    with relive.open(file) as memory:
        assert len(Playbook(memory)) == 1, "a dry run writes nothing"
    output = run("reflect", file)
    assert "new lessons wait" in output
    assert "Choose look_up" in run("lessons", "list", file, "--status", "candidate")


def test_lessons_go_to_a_file_and_back_and_twice_adds_nothing(file: Path, tmp_path: Path) -> None:
    lines, other = tmp_path / "lessons.jsonl", tmp_path / "other.db"
    run("lessons", "export", file, "--to", lines)
    with relive.open(other):
        pass
    assert "Added 1, merged 0, known already 0." in run(
        "lessons", "import", tmp_path / "lessons.jsonl", tmp_path / "other.db"
    )
    assert "Added 0, merged 0, known already 1." in run(
        "lessons", "import", tmp_path / "lessons.jsonl", tmp_path / "other.db"
    )
    (tmp_path / "bad.jsonl").write_text('{"do": "x"}\n{')
    assert "Line 2" in run("lessons", "import", tmp_path / "bad.jsonl", other, code=1)
    (tmp_path / "bad.jsonl").write_bytes(b'{"do": "\xe4"}\n')
    assert "Line 1" in run("lessons", "import", tmp_path / "bad.jsonl", other, code=1)
    assert "none of candidate" in run("lessons", "export", file, "--status", "activ", code=2)


def test_a_rollback_says_what_it_reached(file: Path) -> None:
    run("reflect", file)
    done = json.loads(run("lessons", "rollback", file, "--agent", "support", "--json"))
    assert len(done["experiences"]) == 40
    assert done["retired"]
    assert "Say what to roll back" in run("lessons", "rollback", file, code=2)


def test_a_dry_run_shows_the_block_with_distances_and_tokens(file: Path) -> None:
    output = run("inject", "Where is my parcel?", file, "--agent", "support", "--dry-run")
    assert "<relive-notes>" in output
    assert "Name the day of delivery" in output
    assert "lesson 1: distance" in output
    assert "of 600 tokens" in output
    assert "Nothing" in run("inject", "xyzzy", file, "--dry-run")


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for arguments in (("lessons", "list"), ("lessons", "approve", 1), ("reflect",), ("lessons", "follow")):
        run(*arguments, tmp_path / "none.db", code=1)
    assert list(tmp_path.iterdir()) == []


def test_what_a_lesson_says_is_shown_as_it_is_and_never_as_markup(file: Path) -> None:
    evil = "[bold red]x[/] <img src=x onerror=alert(1)>"
    run("lessons", "add", evil, file, "--when", "[link=javascript:1]always[/link]")
    listed = run("lessons", "list", file)
    assert evil in listed
    assert "[link=javascript:1]always[/link]" in listed
    assert evil in run("lessons", "show", 2, file)
