"""Keys and cookies: each reaches whom it was meant for, and nobody else, the disk and the log least of all."""

import json
from pathlib import Path

import pytest
from gateway_calls import CHAT, KEY
from loopback import ANSWER, QUESTION, Rig, model, reply, run

from relive.gateway.routes import Model
from relive.llm.endpoint import Endpoint
from relive.storage.redaction import Redactor

COOKIE, QUERY = "session=zzz-cookie-zzz", "AIzaTESTTESTTEST"


def contents(folder: Path) -> list[bytes]:
    """What is in the files of a folder and its folders."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def test_prx_14_no_secret_reaches_the_disk_and_the_upstream_gets_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    async def body(rig: Rig) -> None:
        error = {"error": {"message": f"Incorrect API key provided: {KEY}. See https://x.test/?key={QUERY}"}}
        rig.upstream.answers(reply(error, 401), reply(ANSWER))
        headers = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "cookie": COOKIE}
        for _ in range(2):
            await rig.post(f"{CHAT}?key={QUERY}", QUESTION, headers)
        for request in rig.upstream.requests:
            assert request.headers["authorization"] == f"Bearer {KEY}"
            assert request.headers["x-api-key"] == KEY
            assert request.headers["cookie"] == COOKIE
            assert QUERY in request.target
        rig.storage.flush()
        files = contents(tmp_path)
        assert len(files) > 3
        for secret in (KEY, COOKIE.partition("=")[2], QUERY):
            assert not any(secret.encode() in data for data in files), secret
            assert secret not in caplog.text

    run(tmp_path, body, redact=Redactor())


def test_a_route_with_a_key_of_its_own_gets_that_and_not_the_clients(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(ANSWER))
        rig.second.answers(reply(ANSWER))
        await rig.post(CHAT, {**QUESTION, "model": "a"}, {"authorization": f"Bearer {KEY}", "x-relive-agent": "me"})
        await rig.post(CHAT, {**QUESTION, "model": "b"}, {"x-api-key": KEY})
        assert rig.upstream.requests[0].headers["authorization"] == "Bearer provider-key"
        assert not any(name.startswith("x-relive-") for name in rig.upstream.requests[0].headers)
        assert rig.second.requests[0].headers["x-api-key"] == "other-key"
        assert "authorization" not in rig.second.requests[0].headers

    run(
        tmp_path,
        body,
        models=lambda rig: [
            model("a", rig.upstream, key="provider-key"),
            model("b", rig.second, key="other-key", api="anthropic"),
        ],
    )


def test_the_headers_of_a_route_win_and_a_key_among_them_or_in_the_address_is_its_own(tmp_path: Path) -> None:
    def models(rig: Rig) -> list[Model]:
        named = Endpoint.of(rig.upstream.base_url, headers={"Api-Key": "the-routes", "x-org": "the-routes"})
        address = Endpoint.of(rig.second.base_url.replace("://", "://user:password@"))
        return [Model(name="a", endpoint=named), Model(name="b", endpoint=address)]

    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(ANSWER))
        rig.second.answers(reply(ANSWER))
        sent = {"authorization": f"Bearer {KEY}", "x-org": "the-clients", "cookie": COOKIE}
        await rig.post(CHAT, {**QUESTION, "model": "a"}, sent)
        await rig.post(CHAT, {**QUESTION, "model": "b"}, sent)
        got = rig.upstream.requests[0].headers
        assert (got["api-key"], got["x-org"]) == ("the-routes", "the-routes")
        assert not {"authorization", "cookie"} & got.keys()
        assert rig.second.requests[0].headers["authorization"] == "Basic dXNlcjpwYXNzd29yZA=="

    run(tmp_path, body, models=models)


def test_the_clients_credentials_go_to_no_other_host(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"{}", 500), reply(b"{}", 500), reply(b"{}", 500), reply(ANSWER))
        rig.second.answers(reply(b"{}", 500))
        secrets = dict.fromkeys(("authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"), KEY)
        status, _, _ = await rig.post(CHAT + f"?key={KEY}&beta=true", {**QUESTION, "model": "a"}, secrets)
        assert status == 200, "answered by c"
        for request in rig.upstream.requests:
            assert {name: request.headers[name] for name in secrets} == secrets
            assert request.target == CHAT + f"?key={KEY}&beta=true"
        for request in rig.second.requests:
            assert not secrets.keys() & request.headers.keys()
            assert request.target == CHAT + "?beta=true"

    run(
        tmp_path,
        body,
        models=lambda rig: [
            model("a", rig.upstream, "b", "c", model="a-1"),
            model("b", rig.second, model="b-1"),
            model("c", rig.upstream, model="c-1"),
        ],
    )


def test_with_keys_required_only_their_owners_get_in_and_no_key_goes_on(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(ANSWER))
        text, key = rig.keys.create("laptop", ["call"], agent="router")
        readonly, _ = rig.keys.create("viewer", ["read"])
        for headers in (
            {},
            {"authorization": f"Bearer {KEY}"},
            {"authorization": f"Bearer {text}x"},
            {"x-api-key": "rlv_"},
        ):
            status, _, got = await rig.post(CHAT, QUESTION, headers)
            assert (status, json.loads(got)["error"]["code"]) == (401, "invalid_api_key")
        status, _, got = await rig.post(CHAT, QUESTION, {"authorization": f"Bearer {readonly}"})
        assert (status, json.loads(got)["error"]["code"]) == (403, "scope")
        assert rig.upstream.requests == []
        assert (await rig.post(CHAT, QUESTION, {"authorization": f"Bearer {text}"}))[0] == 200
        assert "authorization" not in rig.upstream.requests[0].headers
        (transition,) = rig.rows()
        assert transition.agent == "router"
        rig.keys.revoke(key.id)
        assert (await rig.post(CHAT, QUESTION, {"x-api-key": text}))[0] == 401

    run(tmp_path, body, keys_required=True)
