"""`relive import`, `relive export` and the commands of a store's care, run as programs."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relive.experience import Feedback, Transition
from relive.storage import SqliteStorage

PROGRAM = str(Path(sys.executable).parent / "relive")
TAU = Path(__file__).parents[1] / "data" / "tau_bench" / "gpt-4o-airline.json.zst"


def call(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs the program; its output is captured unless told otherwise."""
    given: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120}
    environment = {name: value for name, value in os.environ.items() if name != "RELIVE_FILE"}
    return subprocess.run([PROGRAM, *map(str, arguments)], **{"env": environment, **given, **options})  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "agent.db"
    with SqliteStorage(path) as storage:
        for start in range(0, 5_000, 1_000):
            storage.append(
                [Transition(state=f"state {n}", action=n, agent="ab"[n % 2]) for n in range(start, start + 1_000)]
            )
    return path


@pytest.fixture
def cli_03(tmp_path: Path) -> Path:
    """Three records that end in CRLF, two blank lines, one with separators in a string, and three bad ones."""
    record = '{"state": "%s", "action": 1, "reward": %s}'
    lines = [record % (f"s{n}", 1) for n in range(3)]
    lines += ["", "", record % ("one\u2028two\u0085three", 1), record % ("s", "NaN"), record % ('s", "state": "t', 1)]
    path = tmp_path / "in.jsonl"
    path.write_text("\ufeff" + "\r\n".join([*lines, '{"state": "cut']), newline="")
    return path


def test_all_of_tau_bench_is_imported_by_one_command(tmp_path: Path) -> None:
    done = call("import", TAU, tmp_path / "s.db", "--agent", "airline", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["format"], report["imported"], report["failed"]) == ("tau-bench", 2454, 0)
    again = call("import", TAU, tmp_path / "s.db")
    assert "Imported 0 experiences" in again.stdout
    assert "(2,454 there already)" in again.stdout


def test_cli_03_what_can_be_imported_is_and_the_rest_is_named_by_line(cli_03: Path, tmp_path: Path) -> None:
    done = call("import", cli_03, tmp_path / "s.db")
    assert done.returncode == 1
    assert "Imported 4 experiences" in done.stdout
    problems = done.stderr.splitlines()
    assert problems[0].startswith("line 7: NaN is not JSON")
    assert problems[1].startswith('line 8: the key "state" occurs twice')
    assert problems[2].startswith("line 9: it is cut off")
    assert problems[3] == "relive: 3 records could not be taken; the rest was imported."
    assert "Traceback" not in done.stderr


def test_cli_03_the_same_without_a_mark_packed_and_from_standard_input(cli_03: Path, tmp_path: Path) -> None:
    content = cli_03.read_bytes()
    reports = [json.loads(call("import", cli_03, tmp_path / "0.db", "--json").stdout)]
    for number, changed in enumerate((content.removeprefix(b"\xef\xbb\xbf"), gzip.compress(content)), 1):
        (tmp_path / f"{number}").write_bytes(changed)
        reports.append(json.loads(call("import", tmp_path / f"{number}", tmp_path / f"{number}.db", "--json").stdout))
    with cli_03.open("rb") as file:
        reports.append(json.loads(call("import", "-", tmp_path / "3.db", "--json", stdin=file).stdout))
    assert [r.pop("source") for r in reports] == [
        str(cli_03),
        str(tmp_path / "1"),
        str(tmp_path / "2"),
        "standard input",
    ]
    assert all(r == reports[0] for r in reports)


def test_cli_03_utf_16_is_called_that(cli_03: Path, tmp_path: Path) -> None:
    (tmp_path / "wide").write_bytes(cli_03.read_text().encode("utf-16"))
    done = call("import", tmp_path / "wide", tmp_path / "s.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is encoded as UTF-16, but Relive reads UTF-8" in done.stderr


@pytest.mark.parametrize("content", [None, '{"prompt": "x"}', "PK\x03\x04"])
def test_a_file_that_cannot_be_imported_makes_no_store(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "in").write_text(content)
    done = call("import", tmp_path / "in", tmp_path / "s.db")
    assert done.returncode == 1
    assert done.stderr.startswith(f"relive: {tmp_path / 'in'}")
    assert not (tmp_path / "s.db").exists()


def test_an_empty_file_holds_no_records_and_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "in").touch()
    done = call("import", tmp_path / "in", tmp_path / "s.db")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'in'} holds no records.\n")


def test_sto_11_a_pickle_is_refused_and_never_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "cases_marker"
    program = f"import pathlib; pathlib.Path({str(marker)!r}).touch()"
    pickled = b"\x80\x04cbuiltins\nexec\n(X" + len(program).to_bytes(4, "little") + program.encode() + b"tR."
    (tmp_path / "in.jsonl").write_bytes(pickled)
    (tmp_path / "p.db").write_bytes(pickled * 100)
    for arguments in (
        ("import", tmp_path / "in.jsonl", tmp_path / "s.db"),
        ("check", tmp_path / "p.db"),
        ("recover", tmp_path / "p.db", tmp_path / "new.db"),
        ("export", tmp_path / "p.db"),
    ):
        done = call(*arguments)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
    assert not marker.exists()


def test_a_whole_store_goes_through_a_pipe(store: Path, tmp_path: Path) -> None:
    exported = call("export", store)
    assert (exported.returncode, exported.stderr) == (0, "")
    done = call("import", "-", tmp_path / "copy.db", input=exported.stdout)
    assert "Imported 5,000 experiences" in done.stdout
    assert call("export", tmp_path / "copy.db").stdout == exported.stdout


@pytest.mark.parametrize("unbuffered", [False, True])
def test_cli_01_a_reader_that_takes_one_line_ends_an_export_quietly(store: Path, unbuffered: bool) -> None:
    environment = {**os.environ, **({"PYTHONUNBUFFERED": "1"} if unbuffered else {})}
    process = subprocess.Popen(
        [PROGRAM, "export", str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) in (0, 141)
    assert json.loads(first)["state"] == "state 0"
    assert said == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_cli_01_a_full_device_is_an_error(store: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        piped = call("export", store, stdout=full)
    named = call("export", store, "--to", "/dev/full")
    for done in (piped, named):
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        assert "Exported" not in (done.stdout or "")


def test_an_export_holds_what_the_options_name(store: Path, tmp_path: Path) -> None:
    done = call("export", store, "--agent", "b", "--to", tmp_path / "out.jsonl.gz")
    assert done.returncode == 0, done.stderr
    assert "Exported 2,500 experiences" in done.stdout
    with gzip.open(tmp_path / "out.jsonl.gz") as file:
        assert {json.loads(line)["agent"] for line in file} == {"b"}
    assert call("export", store, "--since", "2099-01-01").stdout == ""
    again = call("export", store, "--to", tmp_path / "out.jsonl.gz")
    assert again.returncode == 1
    assert "is there already; replace it with --force" in again.stderr
    assert call("export", store, "--to", tmp_path / "out.jsonl.gz", "--force").returncode == 0


def test_rows_to_train_on_are_exported(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with SqliteStorage(path) as storage:
        storage.append([Transition(state="Where?", action="In Leeds.")])
        storage.feedback(Feedback(experience_id=1, demonstration="In York."))
    (row,) = map(json.loads, call("export", path, "--format", "chat").stdout.splitlines())
    assert [message["content"] for message in row["messages"]] == ["Where?", "In York."]
    done = call("export", path, "--format", "preference", "--to", tmp_path / "pairs.jsonl")
    assert "Exported 1 preference row to" in done.stdout
    assert json.loads((tmp_path / "pairs.jsonl").read_text())["rejected"][0]["content"] == "In Leeds."
    assert call("export", path, "--format", "pairs").returncode == 2


def test_parquet_is_told_by_the_name_of_the_file(store: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert call("export", store, "--to", tmp_path / "out.parquet").returncode == 0
    assert parquet.read_metadata(tmp_path / "out.parquet").num_rows == 5_000
    assert call("export", store, "--format", "parquet").returncode == 2
    assert call("export", store, "--outcome", "won").returncode == 2


def test_the_store_may_be_named_by_the_environment(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "agent.db"
    shutil.copyfile(store, copy)
    environment = {**os.environ, "RELIVE_FILE": str(copy)}
    assert len(call("export", env=environment).stdout.splitlines()) == 5_000
    assert call("backup", tmp_path / "b.db", env=environment).returncode == 0
    assert "5,000 experiences, nothing wrong" in call("check", env=environment).stdout
    assert call("compact", env=environment).returncode == 0


def test_a_backup_is_made_checked_and_compacted(store: Path, tmp_path: Path) -> None:
    done = call("backup", store, tmp_path / "b.db")
    assert "Backed up 5,000 experiences" in done.stdout
    again = call("backup", store, tmp_path / "b.db")
    assert again.returncode == 1
    assert "there already" in again.stderr
    assert call("backup", store, tmp_path / "b.db", "--force", "--json").returncode == 0
    assert call("check", tmp_path / "b.db").stdout.endswith("5,000 experiences, nothing wrong.\n")
    assert json.loads(call("compact", tmp_path / "b.db", "--json").stdout)["bytes_after"] > 0
    assert call("backup").returncode == 2


def test_sto_08_damage_is_found_saved_and_reported(store: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "s.db"
    shutil.copyfile(store, damaged)
    with damaged.open("r+b") as file:
        file.truncate(damaged.stat().st_size * 6 // 10)
    content = damaged.read_bytes()
    found = call("check", damaged)
    assert found.returncode == 1
    assert "cut short" in found.stdout
    assert "relive recover" in found.stderr
    done = call("recover", damaged, tmp_path / "new.db", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["saved"] + report["lost"] == 5_000
    assert call("check", tmp_path / "new.db").returncode == 0
    assert call("recover", damaged, tmp_path / "new.db").returncode == 1
    assert damaged.read_bytes() == content
    assert call("recover", tmp_path / "new.db", tmp_path / "again.db").returncode == 0


@pytest.mark.parametrize("command", ["check", "export", "compact"])
def test_a_store_that_is_not_there_is_not_made(command: str, tmp_path: Path) -> None:
    done = call(command, tmp_path / "nowhere.db")
    assert done.returncode == 1
    assert "nowhere.db" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_from_a_file_reaches_the_terminal_as_a_command(tmp_path: Path) -> None:
    (tmp_path / "in").write_text('{"a\x9b2J": 1, "a\x9b2J": 2}\n{"state": 1, "action": 1}\n')
    done = call("import", tmp_path / "in", tmp_path / "s.db")
    assert "occurs twice" in done.stderr
    assert "\x9b" not in done.stderr


def test_a_file_without_any_json_is_refused_before_a_store_is_made(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("state,action\nhello,world\n")
    done = call("import", tmp_path / "x.csv", tmp_path / "s.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert "has none of the known formats: no line that was looked at is a JSON object" in done.stderr
    assert not (tmp_path / "s.db").exists()


def test_an_export_to_a_name_that_says_no_known_format_is_refused(store: Path, tmp_path: Path) -> None:
    done = call("export", store, "--to", tmp_path / "all.csv")
    assert done.returncode == 2
    assert "add --format" in done.stderr
    assert not (tmp_path / "all.csv").exists()


def test_a_backup_without_a_target_asks_for_one(store: Path, tmp_path: Path) -> None:
    done = call("backup", store, cwd=tmp_path)
    assert done.returncode == 2
    assert "say where to" in done.stderr
