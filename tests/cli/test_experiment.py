"""`relive experiment`, in this process."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import relive
from relive.cli.app import app
from relive.cli.commands import register

if not app.registered_commands:
    register(app)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.db"
    relive.open(path).close()
    (tmp_path / "variants.toml").write_text(
        '[[variants]]\nname = "as it is"\n[[variants]]\nname = "[b]brief[/b]"\nprompt = "Be brief."\nrecall = false\n'
    )
    return path


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["experiment", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def test_an_experiment_is_started_shown_and_stopped(file: Path) -> None:
    assert "There is no experiment" in run(file, code=1)
    assert "compares as it is, [b]brief[/b]" in run(
        "start", file.with_name("variants.toml"), file, "--agent", "support"
    )
    shown = run(file)
    assert "[b]brief[/b]" in shown, "a name is no markup"
    assert "other instructions, without memory" in shown
    assert "It is not known yet which is best: evidence 0.0 of the" in shown
    assert "stop it first" in run("start", file.with_name("variants.toml"), file, code=1)
    run("stop", file)
    (found,) = json.loads(run("show", file, "--json"))
    assert found["episodes"] == [0, 0]
    assert found["experiment"]["agent"] == "support"
    assert found["experiment"]["stopped_at"] is not None
    assert "No experiment runs." in run("stop", file, code=1)


def test_a_store_that_is_not_there_is_not_made(file: Path, tmp_path: Path) -> None:
    run("start", tmp_path / "variants.toml", tmp_path / "none.db", code=1)
    run(tmp_path / "none.db", code=1)
    assert not (tmp_path / "none.db").exists()
