"""The admin API: what workers and trainers do through it, and how it says no."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import reply
from server_rig import Served, run

from relive.storage.training_rows import export_chats, export_preferences
from relive.storage.wire import MSGPACK, pack, unpack

ANSWER = {
    "id": "chatcmpl-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "In Leeds."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}
QUESTION = {"model": "m-1", "messages": [{"role": "user", "content": "Where is my card?"}]}
CHAT = "/v1/chat/completions"
TRACE = {"token_ids": [1, 2, 3], "mask": [0, 1, 1], "logprobs": [0.0, -0.5, -0.25]}


def some(count: int) -> list[dict[str, Any]]:
    return [{"state": {"n": n}, "action": f"a{n}", "reward": n / 10, "agent": "worker"} for n in range(count)]


def test_workers_write_and_a_trainer_samples_and_sets_priorities(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        given = [*some(3), {"state": 1, "action": 2, "tokens": TRACE}]
        status, added = await served.ask(
            "/api/experiences", {"experiences": given, "priorities": [1, 0, 0, 1]}, form=MSGPACK
        )
        assert status == 200
        assert added["ids"].tolist() == [1, 2, 3, 4]
        status, batch = await served.ask("/api/sample", {"batch_size": 64}, form=MSGPACK)
        assert status == 200
        assert set(batch["ids"].tolist()) == {1, 4}
        assert len(batch["experiences"]) == len(batch["weights"]) == len(batch["probabilities"])
        tokens = next(e["tokens"] for e in batch["experiences"] if e["tokens"] is not None)
        assert tokens["token_ids"].dtype == np.int32
        assert tokens["logprobs"].tolist() == [0.0, -0.5, -0.25]
        changes = {"ids": added["ids"], "priorities": np.array([0.0, 5.0, 0.0, 0.0])}
        assert await served.ask("/api/priorities", changes, form=MSGPACK) == (200, {"changed": 4})
        _, batch = await served.ask("/api/sample", {"batch_size": 8})
        assert set(batch["ids"]) == {2}
        _, stats = await served.ask("/api/stats")
        assert (stats["size"], stats["unknown_rewards"]) == (4, 1)

    run(tmp_path, body)


def test_what_is_recorded_can_be_listed_shown_and_searched(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        served.upstream.answers(reply(ANSWER))
        async with served.client.post(served.url + CHAT, json=QUESTION, headers={"x-relive-agent": "cards"}) as answer:
            uid = answer.headers["x-relive-experience-id"]
        await served.ask("/api/experiences", {"experiences": some(2)})
        _, listed = await served.ask("/api/experiences?agent=cards")
        assert [entry["uid"] for entry in listed["experiences"]] == [uid]
        _, page = await served.ask("/api/experiences?limit=1&newest_first=1&after=3")
        assert [entry["id"] for entry in page["experiences"]] == [2]
        for name in (uid, "1"):
            status, shown = await served.ask(f"/api/experiences/{name}")
            assert (status, shown["action"]["content"], shown["feedback"]) == (200, "In Leeds.", [])
        _, found = await served.ask("/api/search?text=card")
        assert [entry["id"] for entry in found["found"]] == [1]
        _, usage = await served.ask("/api/usage?by=agent")
        assert {tuple(row["group"]): row["calls"] for row in usage["rows"]} == {("cards",): 1, ("worker",): 2}
        for missing in ("99", "0" * 32, "zz", "-1"):
            assert (await served.ask(f"/api/experiences/{missing}"))[0] == 404

    run(tmp_path, body)


@pytest.mark.parametrize("name", ["experience_id", "response_id", "number"])
def test_feedback_names_a_call_by_any_of_its_ids(tmp_path: Path, name: str) -> None:
    async def body(served: Served) -> None:
        served.upstream.answers(reply(ANSWER))
        async with served.client.post(served.url + CHAT, json=QUESTION) as answer:
            uid = answer.headers["x-relive-experience-id"]
        ids = {"experience_id": uid, "response_id": "chatcmpl-1", "number": 1}
        about = {"experience_id" if name == "number" else name: ids[name]}
        if name == "response_id":
            served.parts.gateway.answers.clear()  # as after a restart
        status, result = await served.ask("/v1/feedback", {**about, "reward": 0.8, "comment": "right"})
        assert (status, result) == (200, {"experiences": 1})
        _, shown = await served.ask("/api/experiences/1")
        assert (shown["reward"], shown["outcome"]) == (0.8, "success")
        assert shown["feedback"][0]["comment"] == "right"

    run(tmp_path, body)


def test_feedback_about_an_episode_replaces_what_the_same_source_said(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        await served.ask("/api/experiences", {"experiences": [{**entry, "episode_id": "e"} for entry in some(3)]})
        for reward in (0.2, 0.9):
            status, result = await served.ask("/v1/feedback", {"episode_id": "e", "reward": reward, "source": "judge"})
            assert (status, result["experiences"]) == (200, 3)
        _, listed = await served.ask("/api/experiences")
        assert {entry["reward"] for entry in listed["experiences"]} == {0.9}

    run(tmp_path, body)


def test_a_demonstration_becomes_a_positive_experience_under_the_one_it_corrects(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        served.upstream.answers(reply(ANSWER))
        await served.ask(CHAT, QUESTION)
        right = {"experience_id": 1, "reward": 0.0, "demonstration": "In York.", "source": "anna"}
        for _ in range(2):
            status, result = await served.ask("/v1/feedback", right)
            assert (status, result) == (200, {"experiences": 1, "demonstration_id": 2})
        _, shown = await served.ask("/api/experiences/2")
        assert shown["action"] == {"role": "assistant", "content": "In York."}
        assert (shown["outcome"], shown["reward"], shown["parent"]) == ("success", 1.0, 1)
        assert shown["state"] == {"messages": QUESTION["messages"]}
        _, original = await served.ask("/api/experiences/1")
        assert original["outcome"] == "failure"
        chats, pairs = io.BytesIO(), io.BytesIO()
        asked, york = QUESTION["messages"], {"role": "assistant", "content": "In York."}
        assert export_chats(served.parts.memory.storage, chats) == 1, "the demonstration, and that only once"
        assert json.loads(chats.getvalue()) == {"messages": [*asked, york]}
        assert export_preferences(served.parts.memory.storage, pairs) == 1
        pair = json.loads(pairs.getvalue())
        assert (pair["prompt"], pair["chosen"], pair["rejected"]) == (asked, [york], [original["action"]])

    run(tmp_path, body)


METRICS = [
    {"name": "solved", "type": "boolean"},
    {"name": "stars", "minimum": 1, "maximum": 5},
    {"name": "kept", "type": "boolean", "level": "episode"},
]


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"experience_id": 1, "key": "solved", "reward": True}, 200, None),
        ({"experience_id": 1, "key": "stars", "reward": 4}, 200, None),
        ({"episode_id": "e", "key": "kept", "reward": False}, 200, None),
        ({"experience_id": 1, "comment": "no reward, no metric"}, 200, None),
        ({"experience_id": 1, "key": "mood", "reward": 1}, 400, "there are solved, stars, kept"),
        ({"experience_id": 1, "reward": 1}, 400, "no metric 'reward'"),
        ({"experience_id": 1, "key": "solved", "reward": 1}, 400, "true or false"),
        ({"experience_id": 1, "key": "stars", "reward": True}, 400, "a number"),
        ({"experience_id": 1, "key": "stars", "reward": 6}, 400, "between 1.0 and 5.0"),
        ({"experience_id": 1, "key": "kept", "reward": True}, 400, "about one episode"),
        ({"experience_id": 1, "key": "stars", "reward": "4"}, 400, "finite number"),
        ({"experience_id": 9, "key": "stars", "reward": 4}, 404, "no experience 9"),
        ({"experience_id": "0" * 32, "key": "stars", "reward": 4}, 404, "no experience"),
        ({"key": "stars", "reward": 4}, 400, "exactly one of"),
        ({"experience_id": 1, "episode_id": "e", "reward": 4}, 400, "exactly one of"),
        ({"experience_id": 1, "rewards": 4}, 400, "no field rewards"),
        ({"experience_id": 1}, 400, "says nothing"),
        ([1], 400, "JSON object"),
    ],
)
def test_declared_metrics_are_held_to(tmp_path: Path, given: Any, status: int, words: str | None) -> None:
    async def body(served: Served) -> None:
        await served.ask("/api/experiences", {"experiences": [{"state": 1, "action": 1, "episode_id": "e"}]})
        answered, result = await served.ask("/v1/feedback", given)
        assert answered == status, result
        if words is not None:
            assert words in result["error"]["message"]

    run(tmp_path, body, metrics=METRICS)


def test_feedback_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        await served.ask("/api/experiences", {"experiences": some(1)})
        for number in (b"NaN", b"Infinity", b"1e400"):
            raw = b'{"experience_id": 1, "reward": %s}' % number
            assert (await served.ask("/v1/feedback", raw))[0] == 400
        nan = {"experience_id": 1, "reward": float("nan")}
        assert (await served.ask("/v1/feedback", nan, form=MSGPACK))[0] == 400

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/experiences", {"experiences": [{"state": 1}]}),
        ("/api/experiences", {"experiences": [{"state": 1, "action": 1, "unknown": 1}]}),
        ("/api/experiences", {"experiences": [{"state": 1, "action": 1, "reward": "high"}]}),
        ("/api/experiences", {"experiences": some(2), "priorities": [1]}),
        ("/api/experiences", {"experiences": some(1), "priorities": [-1]}),
        ("/api/experiences", {}),
        ("/api/experiences", b"{"),
        ("/api/sample", {"batch_size": 0}),
        ("/api/sample", {"batch_size": True}),
        ("/api/sample", {"batch_size": 10**9}),
        ("/api/priorities", {"ids": [1]}),
        ("/api/priorities", {"ids": [1], "priorities": [1, 2]}),
        ("/api/priorities", {"ids": [1.5], "priorities": [1]}),
        ("/api/priorities", {"ids": [1], "priorities": ["x"]}),
        ("/api/priorities", {"ids": [1], "priorities": [1], "td_errors": [1]}),
        ("/api/priorities", {"ids": [[1]], "priorities": [[1]]}),
        ("/api/priorities", {"ids": [10**30], "priorities": [1]}),
    ],
)
def test_a_wrong_body_is_refused_in_one_sentence_and_changes_nothing(tmp_path: Path, path: str, body: Any) -> None:
    async def check(served: Served) -> None:
        status, result = await served.ask(path, body)
        assert status == 400
        assert "\n" not in result["error"]["message"]
        assert len(served.parts.memory) == 0

    run(tmp_path, check)


def test_strict_sampling_of_too_few_is_a_conflict(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        status, result = await served.ask("/api/sample", {"batch_size": 3, "strict": True})
        assert (status, result["error"]["code"]) == (409, "not_enough")

    run(tmp_path, body)


@pytest.mark.parametrize("query", ["limit=x", "after=-1", "outcome=fine", "limit=1e3"])
def test_a_wrong_query_is_refused(tmp_path: Path, query: str) -> None:
    async def body(served: Served) -> None:
        assert (await served.ask(f"/api/experiences?{query}"))[0] == 400

    run(tmp_path, body)


def test_every_route_asks_for_its_scope(tmp_path: Path) -> None:
    wanted = {
        ("POST", "/v1/feedback"): "feedback",
        ("POST", "/api/experiences"): "write",
        ("GET", "/api/experiences"): "read",
        ("GET", "/api/experiences/1"): "read",
        ("GET", "/api/search"): "read",
        ("POST", "/api/sample"): "write",
        ("POST", "/api/priorities"): "write",
        ("GET", "/api/stats"): "read",
        ("GET", "/api/usage"): "read",
        ("GET", "/metrics"): "read",
        ("POST", CHAT): "call",
    }

    async def body(served: Served) -> None:
        served.upstream.answers(reply(ANSWER))
        keys = {scope: served.parts.keys.create(scope, [scope])[0] for scope in ("call", "feedback", "read", "write")}
        for (method, path), scope in wanted.items():
            data = {} if method == "POST" else None
            assert (await served.ask(path, data, method=method))[0] == 401
            for held, text in keys.items():
                headers = {"authorization": f"Bearer {text}"}
                status, _ = await served.ask(path, data, method=method, headers=headers)
                assert (status == 403) == (held != scope), (path, held, status)
                assert status != 401
        admin = served.parts.keys.create("admin", ["admin"])[0]
        assert (await served.ask("/api/stats", headers={"x-api-key": admin}))[0] == 200
        assert (await served.ask("/healthz"))[0] == 200

    run(tmp_path, body, server={"keys": "required"}, store={"path": prepared(tmp_path)})


def prepared(folder: Path) -> Path:
    """A store beside which there is a key already, without which no server with keys starts."""
    from relive.server.build import open_keys

    ledger, keys = open_keys(folder / "store.db")
    keys.create("first", ["admin"])
    ledger.close()
    return folder / "store.db"


def test_pages_of_foreign_sites_get_nothing_without_a_key(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        served.upstream.answers(reply(ANSWER))
        for headers in ({"origin": "https://evil.example"}, {"host": "evil.example:8400"}, {"origin": "null"}):
            for path in (CHAT, "/api/sample", "/v1/feedback"):
                assert (await served.ask(path, {}, headers=headers))[0] == 403
        assert served.upstream.requests == []
        assert (await served.ask(CHAT, QUESTION, headers={"origin": "http://localhost:3000"}))[0] == 200

    run(tmp_path, body)


def test_health_and_metrics_show_what_is_recorded(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        served.upstream.answers(reply(ANSWER))
        await served.ask(CHAT, QUESTION)
        assert await served.ask("/healthz") == (200, {"status": "ok", "problems": [], "waiting": 0})
        _, text = await served.ask("/metrics")
        lines = text.decode().splitlines()
        assert 'relive_calls_total{status="complete"} 1' in lines
        assert "relive_records_lost_total 0" in lines
        assert 'relive_route_cooling{route="m"} 0' in lines
        families = {line.split()[2] for line in lines if line.startswith("# TYPE")}
        assert all(line.partition("{")[0].split()[0] in families for line in lines if not line.startswith("#"))

    run(tmp_path, body)


def test_unknown_routes_and_methods_are_no_errors_of_the_server(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        assert (await served.ask("/api/nothing"))[0] == 404
        assert (await served.ask("/api/stats", {}))[0] == 405
        assert (await served.ask("/nothing"))[0] == 404

    run(tmp_path, body)


def test_the_description_names_every_route(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        _, described = await served.ask("/api/openapi.json")
        assert described["openapi"] == "3.1.0"
        for path, operations in described["paths"].items():
            for method in operations:
                got, _ = await served.ask(path.replace("{id}", "1"), b"{}" if method == "post" else None)
                assert got not in (404, 405) or path.endswith("{id}")

    run(tmp_path, body)


def test_settings_and_prices_are_kept_once_each_and_named_by_every_row(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        served.upstream.answers(reply(ANSWER))
        for _ in range(2):
            await served.ask(CHAT, QUESTION)
        _, listed = await served.ask("/api/experiences")
        (name,) = {entry["info"]["snapshot"] for entry in listed["experiences"]}
        kept = served.parts.ledger.rows("SELECT hash, body FROM snapshot")
        assert [row[0] for row in kept] == [name]
        snapshot = json.loads(kept[0][1])
        assert snapshot["prices"].startswith("genai-prices ")
        assert "secret-header" not in kept[0][1]
        assert snapshot["settings"]["models"][0]["headers"] == ["x-team"]

    upstream_headers = {"x-team": "secret-header"}

    async def with_headers(served: Served) -> None:
        await body(served)

    run_with_headers(tmp_path, with_headers, upstream_headers)


def run_with_headers(folder: Path, body: Any, headers: dict[str, str]) -> None:
    """A server whose one model sends these headers along."""
    import asyncio

    from loopback import Upstream
    from server_rig import served

    async def all_of_it() -> None:
        upstream = Upstream()
        await upstream.start()
        models = [{"name": "m", "upstream": upstream.base_url, "headers": headers}]
        async with served(folder, models=models) as made:
            made.upstream = upstream
            await body(made)
        await upstream.stop()

    asyncio.run(all_of_it())


def test_arrays_and_exact_text_survive_the_wire() -> None:
    import msgspec

    values = {"a": np.array([1, 2], np.int32), "b": msgspec.Raw(b'{"n": 1.10}'), "c": [np.float32(0.5)], "d": None}
    back = unpack(pack(values, MSGPACK), MSGPACK)
    assert back["a"].dtype == np.int32
    assert (bytes(back["b"]), back["c"], back["d"]) == (b'{"n": 1.10}', [0.5], None)
