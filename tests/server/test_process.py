"""`relive serve` as a process: how it starts, stops, dies and comes back."""

import asyncio
import json
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest
from gateway_calls import delta, sse
from loopback import Request, Upstream, reply, stream
from server_rig import Process, upstream_thread

from relive.cli import main
from relive.server.build import open_keys
from relive.server.serve import AddressError, listen
from relive.storage import SqliteStorage

CHAT = "/v1/chat/completions"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - what is tested is that this needs a key
WORDS = [f"word{n} " for n in range(8)]


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with upstream_thread() as made:
        yield made


def question(text: str = "x", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def answer(text: str = "Hi") -> dict[str, Any]:
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}], "usage": usage}


async def echo(request: Request, writer: asyncio.StreamWriter) -> None:
    """Answers with what was asked, streamed slowly or whole."""
    asked = request.json()
    if asked.get("stream"):
        await stream([*(sse(delta(w), end=b"") for w in WORDS), sse(delta(finish="stop"))], pause=0.005)(
            request, writer
        )
    else:
        await asyncio.sleep(random.Random(request.body).random() * 0.02)
        await reply(answer(asked["messages"][0]["content"]))(request, writer)


def asked_in(store: Path) -> Counter[str]:
    """How often each question is recorded."""
    with SqliteStorage(store, readonly=True) as storage:
        rows = storage.query(limit=10_000)
        return Counter(row.transition.state["messages"][0]["content"] for row in rows)


def test_it_serves_until_it_is_told_to_stop_and_lets_streams_end(tmp_path: Path, upstream: Upstream) -> None:
    upstream.answers(stream([*(sse(delta(w), end=b"") for w in WORDS), sse(delta(finish="stop"))], pause=0.1))
    server = Process(tmp_path, "--upstream", upstream.base_url)
    url = server.ready()

    async def call() -> bytes:
        async with aiohttp.ClientSession() as client, client.post(url + CHAT, json=question(stream=True)) as got:
            first = await got.content.readany()
            server.process.send_signal(signal.SIGTERM)
            return first + await got.read()

    got = asyncio.run(call())
    assert got.endswith(b"[DONE]\n\n")
    assert server.stop() == 0
    with SqliteStorage(tmp_path / "relive.db", readonly=True) as storage:
        (row,) = storage.query()
        assert row.transition.action["content"] == "".join(WORDS)
        assert row.transition.info["status"] == "complete"
    assert not Path(f"{tmp_path}/relive.db-owner").exists()


async def load(url: str, prefix: str, seen: dict[str, str], clients: int = 8) -> None:
    """Calls until the server is gone; notes which questions were asked, and whose answer ended and how."""

    async def one(number: int) -> None:
        async with aiohttp.ClientSession() as client:
            for count in range(10_000):
                text = f"{prefix}-{number}-{count}"
                seen[text] = "asked"
                try:
                    async with client.post(url + CHAT, json=question(text, stream=count % 2 == 1)) as got:
                        body = await got.read()
                        assert got.status == 200
                        assert b"[DONE]" in body or json.loads(body)["choices"]
                        seen[text] = got.headers.get("x-relive-recorded", "ended")
                except aiohttp.ClientError:
                    return

    await asyncio.gather(*(one(number) for number in range(clients)))


@pytest.mark.parametrize("rounds", [3])
def test_kill_9_loses_no_call_whose_answer_ended_and_leaves_the_others_interrupted(
    tmp_path: Path, upstream: Upstream, rounds: int
) -> None:
    upstream.answers(echo)
    seen: dict[str, str] = {}
    for number in range(rounds):
        server = Process(tmp_path, "--upstream", upstream.base_url)
        url = server.ready()
        with ThreadPoolExecutor() as pool:
            loading = pool.submit(asyncio.run, load(url, str(number), seen))
            time.sleep(0.5 + random.Random(number).random() / 2)
            server.stop(signal.SIGKILL)
            loading.result()
    last = Process(tmp_path, "--upstream", upstream.base_url)
    last.ready()
    assert last.stop() == 0
    recorded = asked_in(tmp_path / "relive.db")
    ended = [text for text, how in seen.items() if how == "ended"]
    assert len(ended) > 20 * rounds
    assert [text for text in ended if recorded[text] != 1] == []
    assert max(recorded.values()) == 1, "none twice"
    with SqliteStorage(tmp_path / "relive.db", readonly=True) as storage:
        rows = [row.transition for row in storage.query(limit=10_000)]
    interrupted = [row for row in rows if row.info["status"] == "interrupted"]
    assert interrupted
    unanswered = {text for text, how in seen.items() if how == "asked"}
    assert {row.state["messages"][0]["content"] for row in interrupted} <= unanswered
    assert all(row.error is not None for row in interrupted)


async def answered(client: aiohttp.ClientSession, url: str, text: str, marks: dict[str, str | None]) -> None:
    """Makes one call, which is answered, and notes what is said of its record."""
    async with client.post(url + CHAT, json=question(text)) as got:
        assert (await got.json())["choices"]
        marks[text] = got.headers.get("x-relive-recorded")


async def health(url: str) -> int:
    async with aiohttp.ClientSession() as client, client.get(f"{url}/healthz") as got:
        return got.status


def until_healthy(url: str) -> None:
    for _ in range(200):
        if asyncio.run(health(url)) == 200:
            break
        time.sleep(0.1)


def test_sto_06_a_store_that_is_locked_under_load_loses_nothing_and_stops_nobody(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.answers(echo)
    server = Process(tmp_path, "--upstream", upstream.base_url)
    url = server.ready()
    marks: dict[str, str | None] = {}

    async def calls(prefix: str, count: int) -> None:
        async with aiohttp.ClientSession() as client:
            for start in range(0, count, 8):
                await asyncio.gather(*(answered(client, url, f"{prefix}-{start + k}", marks) for k in range(8)))

    asyncio.run(calls("before", 16))
    locker = apsw.Connection(str(tmp_path / "relive.db"))
    locker.execute("BEGIN IMMEDIATE").fetchall()
    asyncio.run(calls("first", 8))
    time.sleep(0.5)
    assert asyncio.run(health(url)) == 503
    asyncio.run(calls("locked", 160))
    locker.execute("ROLLBACK").fetchall()
    locker.close()
    assert all(mark == "pending" for text, mark in marks.items() if text.startswith("locked"))
    until_healthy(url)
    asyncio.run(calls("after", 8))
    assert server.stop() == 0
    recorded = asked_in(tmp_path / "relive.db")
    assert {text: recorded[text] for text in marks} == dict.fromkeys(marks, 1)
    assert list((tmp_path / "relive.db.gateway").glob("spool/*")) == []


def test_sto_06_with_no_disk_at_all_calls_go_on_and_their_records_wait_in_memory(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.answers(echo)
    server = Process(tmp_path, "--upstream", upstream.base_url)
    url = server.ready()
    marks: dict[str, str | None] = {}

    async def calls(prefix: str, count: int) -> int:
        async with aiohttp.ClientSession() as client:
            for number in range(count):
                await answered(client, url, f"{prefix}-{number}", marks)
        return await health(url)

    assert asyncio.run(calls("before", 4)) == 200
    endless = resource.RLIM_INFINITY
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, endless))  # no file may grow or be written
    assert asyncio.run(calls("none", 40)) == 503
    assert {mark for text, mark in marks.items() if text.startswith("none")} == {"pending"}
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (endless, endless))
    until_healthy(url)
    asyncio.run(calls("after", 4))
    assert server.stop() == 0
    assert asked_in(tmp_path / "relive.db") == dict.fromkeys(marks, 1)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 2, "--upstream"),
        (["--upstream", "nonsense"], 1, "not the address of an endpoint"),
        (["--config", "missing.toml"], 1, "cannot be read"),
        (["--config", "bad.toml"], 1, "server.prot: there is no such setting"),
        (["--config", "empty.toml"], 1, "no model"),
        (["--config", "circle.toml"], 1, "its own fallback"),
        (["--config", "keyless.toml"], 1, "NO_SUCH_VARIABLE holds no key"),
        (
            ["--upstream", "http://127.0.0.1:1/v1", "--host", EVERYWHERE],
            1,
            "relive keys create laptop --store relive.db",
        ),
        (["--upstream", "http://127.0.0.1:1/v1", "--store", "text.db"], 1, "text.db"),
        (["--upstream", "http://127.0.0.1:1/v1", "--store", "nowhere/x.db"], 1, "nowhere"),
    ],
)
def test_what_keeps_it_from_starting_is_said_in_one_sentence(
    tmp_path: Path,
    options: list[str],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = '[[models]]\nname = "a"\nupstream = "http://x/v1"\n'
    (tmp_path / "bad.toml").write_text(f"{model}[server]\nprot = 1\n")
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "circle.toml").write_text(f'{model}fallbacks = ["a"]\n')
    (tmp_path / "keyless.toml").write_text(f'{model}api_key_env = "NO_SUCH_VARIABLE"\n')
    (tmp_path / "text.db").write_text("this is a text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr("sys.argv", ["relive", "serve", "--port", "0", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == code, said
    assert words in " ".join(said.split())
    if code == 1:
        assert len(said.strip().splitlines()) == 1
    assert (tmp_path / "text.db").read_text() == "this is a text"
    assert not (tmp_path / "nowhere").exists()


def test_a_port_that_is_taken_is_said_with_the_next_step(upstream: Upstream) -> None:
    with pytest.raises(AddressError, match="Name another port with --port"):
        listen("127.0.0.1", upstream.port)
    with pytest.raises(AddressError, match=r"Cannot listen on 192\.0\.2\.1"):
        listen("192.0.2.1", 0)


def test_beyond_this_machine_it_serves_those_with_a_key(tmp_path: Path, upstream: Upstream) -> None:
    upstream.answers(echo)
    ledger, keys = open_keys(tmp_path / "relive.db")
    key, _ = keys.create("laptop", ["call"])
    ledger.close()
    server = Process(tmp_path, "--upstream", upstream.base_url, "--host", EVERYWHERE)
    port = server.ready().rpartition(":")[2]

    async def status(headers: dict[str, str]) -> int:
        url = f"http://127.0.0.1:{port}{CHAT}"
        async with aiohttp.ClientSession() as client, client.post(url, json=question(), headers=headers) as got:
            return got.status

    assert asyncio.run(status({})) == 401
    assert asyncio.run(status({"authorization": f"Bearer {key}"})) == 200
    assert server.stop() == 0
    assert b"rlv_" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).replace(
        key[:8].encode(), b""
    )


def test_check_looks_at_everything_and_starts_nothing(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.answers(reply({"object": "list", "data": [{"id": "m"}]}))
    monkeypatch.chdir(tmp_path)
    for address, code, words in ((upstream.base_url, 0, "ok"), ("http://127.0.0.1:1/v1", 1, "Cannot reach")):
        monkeypatch.setattr("sys.argv", ["relive", "serve", "--upstream", address, "--check"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code or 0) == code
        assert words in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["relive", "serve", "--schema"])
    with pytest.raises(SystemExit):
        main()
    assert json.loads(capsys.readouterr().out)["properties"]["server"]
    assert list(tmp_path.iterdir()) == []


def test_keys_are_made_listed_and_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def relive(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["relive", "keys", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out.strip()

    monkeypatch.chdir(tmp_path)
    key = relive("create", "laptop", "--scope", "call", "--scope", "read", "--agent", "router", "--days", "9")
    assert key.startswith("rlv_")
    (listed,) = json.loads(relive("list", "--json"))
    assert (listed["name"], listed["scopes"], listed["agent"]) == ("laptop", ["call", "read"], "router")
    assert key not in relive("list")
    assert "no longer works" in relive("revoke", "1")
    assert json.loads(relive("list", "--json"))[0]["revoked"] is not None
