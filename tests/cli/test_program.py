"""How the program behaves as a program: what it prints where, and its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import relive

PROGRAM = str(Path(sys.executable).parent / "relive")


def call(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs the program; its output is captured unless told otherwise."""
    given: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120}
    return subprocess.run([PROGRAM, *arguments], **{**given, **options})  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("cli") / "agent.db"
    with relive.open(path) as memory:
        memory.add_batch(
            [
                relive.Transition(
                    state={"messages": [{"role": "user", "content": f"[bold]message {number}[/bold]\x1b[2J"}]},
                    action="answer",
                    reward=float(number % 2),
                    outcome="success" if number % 2 else "failure",
                    cost=1_000_000,
                )
                for number in range(2_000)
            ]
        )
    return str(path)


def test_stats_are_strict_json_for_programs(store: str) -> None:
    found = json.loads(call("stats", store, "--json").stdout)
    assert (found["size"], found["reward_mean"], found["cost"]) == (2_000, 0.5, 2_000_000_000)
    assert found["experiences_per_dollar"] == pytest.approx(1_000)


def test_the_table_names_what_the_json_names(store: str) -> None:
    printed = call("stats", store).stdout
    for name in json.loads(call("stats", store, "--json").stdout):
        assert name.replace("_", " ") in printed


def test_experiences_are_listed_newest_first_and_filtered(store: str) -> None:
    lines = call("experiences", "list", store, "--outcome", "failure", "--limit", "3", "--json").stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["id"] for record in records] == sorted((record["id"] for record in records), reverse=True)
    assert {record["outcome"] for record in records} == {"failure"}


def test_text_from_outside_is_neither_markup_nor_a_terminal_command(store: str) -> None:
    printed = call("experiences", "list", store, "--limit", "1", env={**os.environ, "COLUMNS": "200"}).stdout
    assert "[bold]message 1999[/bold]" in printed
    assert "\x1b" not in printed


def test_one_experience_is_shown_whole(store: str) -> None:
    [first] = call("experiences", "list", store, "--limit", "1", "--json").stdout.splitlines()
    shown = json.loads(call("experiences", "show", str(json.loads(first)["id"]), store).stdout)
    assert shown == json.loads(first)


def test_the_file_may_be_named_by_the_environment(store: str) -> None:
    assert json.loads(call("stats", "--json", env={**os.environ, "RELIVE_FILE": store}).stdout)["size"] == 2_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stats", "{folder}/nothing.db"], "no store at"),
        (["stats", "{folder}/text.txt"], "not a Relive store"),
        (["stats", "{folder}"], "{folder}"),
        (["experiences", "show", "999999", "{store}"], "no experience 999999"),
        (["local", "serve", "--model", "{folder}/text.txt"], "GGUF"),
        (["local", "serve", "--model", "{folder}/nothing.gguf"], "nothing.gguf"),
        (["doctor", "--base-url", "http://127.0.0.1:9/v1"], "endpoint"),
    ],
)
def test_a_failure_is_one_sentence_and_exit_code_1(arguments: list[str], said: str, store: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Just a letter.\n" * 100)
    names = {"folder": str(tmp_path), "store": store}
    result = call(*(argument.format(**names) for argument in arguments))
    assert result.returncode == 1
    assert said.format(**names) in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["experiences", "show"],
        ["experiences", "show", "three"],
        ["experiences", "list", "--outcome", "won"],
        ["experiences", "list", "--limit", "0"],
        ["local", "serve", "--port", "99999"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    result = call(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_cli_01_a_reader_that_stops_early_is_no_error(store: str) -> None:
    for unbuffered in ("", "1"):
        process = subprocess.Popen(
            [PROGRAM, "experiences", "list", store, "--limit", "2000", "--oldest-first", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert "message 0[" in json.loads(process.stdout.readline())["state"]["messages"][0]["content"]
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(timeout=60) == 141


def test_cli_01_a_full_device_is_an_error(store: str) -> None:
    with Path("/dev/full").open("w") as full:
        for arguments in (["stats", store], ["experiences", "list", store, "--limit", "2000", "--json"]):
            result = call(*arguments, stdout=full)
            assert result.returncode == 1
            assert "No space left" in result.stderr
            assert "Traceback" not in result.stderr


def test_the_version_is_shown() -> None:
    assert call("--version").stdout.strip() == f"relive {relive.__version__}"
