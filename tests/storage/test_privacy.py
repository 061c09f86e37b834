"""What a store is given and must not keep, searched for in the bytes that it leaves behind."""

import json
import logging
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import zstandard

from relive.experience import Feedback, TokenTrace, Transition
from relive.storage import SqliteStorage
from relive.storage.connection import connect
from relive.storage.exporter import export_lines, replacing
from relive.storage.purge import every_dictionary
from relive.storage.redaction import DEFAULT, Redactor

KEY, COOKIE, QUERY_KEY = "sk-test-AAAABBBBCCCCDDDD", "session=zzz", "AIzaTESTTESTTEST"
TAU = Path(__file__).parents[1] / "data" / "tau_bench" / "gpt-4o-airline.json.zst"


def recorded_call() -> Transition:
    """A call as a gateway may record it, with its keys everywhere."""
    return Transition(
        state={
            "request": {
                "method": "POST",
                "url": f"https://api.example.com/v1/chat?key={QUERY_KEY}&stream=1",
                "headers": {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "cookie": COOKIE, "accept": "*/*"},
            },
            "messages": [{"role": "user", "content": f"my key is {KEY}, is it right?"}],
        },
        action={
            "content": None,
            "tool_calls": [{"name": "curl", "arguments": json.dumps({"args": ["-H", f"Cookie: {COOKIE}"]})}],
        },
        error=f"401 Incorrect API key provided: {KEY}. Request: https://api.example.com/v1?key={QUERY_KEY}",
        tags=("gateway", KEY),
        tokens=TokenTrace(token_ids=np.arange(5), mask=np.ones(5)),
    )


def test_prx_14_no_key_reaches_the_store_its_side_files_its_log_or_an_export(
    store: SqliteStorage, path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    [number] = store.append([recorded_call()])
    assert number is not None
    store.set_next_state(number, {"role": "tool", "content": f"set-cookie: {COOKIE}"})
    store.feedback(Feedback(experience_id=number, source="user", comment=f"it leaked {KEY}", demonstration={"k": KEY}))
    store.set_reward_rule({"speed": 1.0})
    with replacing(path.parent / "out.jsonl") as out:
        export_lines(store, out)
    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    with closing(connect(path, readonly=True)) as connection:
        decompress = every_dictionary(connection)
        bodies = [decompress(*row) for row in connection.execute("SELECT codec, body FROM payload")]
        bodies += [decompress(*row) for row in connection.execute("SELECT codec, body FROM next_state")]
    logged = caplog.text + "".join(capfd.readouterr())
    for secret in (KEY, COOKIE, QUERY_KEY):
        assert secret.encode() not in files
        assert not any(secret.encode() in body for body in bodies)
        assert secret not in logged
    [kept] = store.get([number])
    assert kept is not None
    assert kept.state["request"]["headers"]["authorization"] == "Bearer [redacted:api_key …DDDD]", "yet it can be told"
    assert kept.state["request"]["headers"]["accept"] == "*/*"
    assert kept.tokens is None


def test_a_store_takes_out_personal_data_where_it_is_told_to(path: Path) -> None:
    said = Transition(state="I am bob@example.com, card 4111 1111 1111 1111", action="ok", agent="bob@example.com")
    with SqliteStorage(path, redact=Redactor(personal=["email", "card"])) as store:
        [number] = store.append([said])
        store.feedback(Feedback(experience_id=number, source="bob@example.com", reward=1.0))
        assert b"bob@example" not in b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert store.query()[0].transition.state == "I am [redacted:email], card [redacted:card]"
        assert store.query()[0].agent == store.identifiers("bob@example.com")[1]
        assert store.search("bob") == []
    with SqliteStorage(path) as store:
        assert store.get(store.append([said]))[0] == said  # type: ignore[arg-type]


def test_nothing_is_taken_out_where_it_is_switched_off_and_no_content_is_kept_where_it_is_off(path: Path) -> None:
    with SqliteStorage(path, redact=None) as store:
        [number] = store.append([recorded_call()])
        assert number is not None
        [kept] = store.get([number])
        assert kept is not None
        for field in ("state", "action", "error", "tags", "tokens"):
            assert getattr(kept, field) == getattr(recorded_call(), field)
    with SqliteStorage(path, redact=Redactor(content=False)) as store:
        [number] = store.append([Transition(state="words", action="more", next_state="still more", reward=0.5, cost=3)])
        assert number is not None
        assert not store.set_next_state(number, "late words")
        [kept] = store.get([number])
        assert kept is not None
        assert (kept.state, kept.action, kept.next_state, kept.reward, kept.cost) == (None, None, None, 0.5, 3)
        assert store.search("words") == []


def test_no_word_of_two_hundred_real_conversations_is_taken_for_a_secret() -> None:
    conversations = json.loads(zstandard.ZstdDecompressor().stream_reader(TAU.read_bytes()).read())
    assert len(conversations) == 200
    careful = Redactor(personal=["card", "phone"])
    for conversation in conversations:
        assert DEFAULT.value(conversation) == (conversation, {})
        assert careful.value(conversation) == (conversation, {})
    assert not any(DEFAULT.suspicious(json.dumps(conversation).encode()) for conversation in conversations)
    addresses = sum(Redactor(secrets=False, personal=["email"]).value(c)[1].get("email", 0) for c in conversations)
    assert addresses == sum(json.dumps(c).count("@") for c in conversations) > 0


def test_no_word_of_many_bank_customers_is_taken_for_a_secret() -> None:
    packed = files("relive.envs").joinpath("data", "banking77.json.zst").read_bytes()
    data = json.loads(zstandard.ZstdDecompressor().decompress(packed))
    texts = [text for rows in data.values() for row in rows for text in row]
    assert len(texts) > 5_000
    careful = Redactor(personal=["email", "card", "phone"])
    assert [text for text in texts if careful.text(text)[1]] == []
