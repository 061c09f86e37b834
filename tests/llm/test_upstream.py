"""A call and its record, from every kind of code that may make one."""

import asyncio
import gc
import json
import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from relive import ReliveError
from relive.llm import BadAnswerError, BadRequestError, PriceTable, UnreachableError, Upstream, UpstreamError, call

KEY = "sk-test-AAAABBBBCCCCDDDD"
BIG = 2**70 + 1


def test_a_call_leaves_message_usage_time_and_tries(provider: Any, say: Any, answer_of: Any) -> None:
    provider.answers = [(200, answer_of("hello"), {"x-request-id": "r-7"})]
    with provider.upstream(api_key=KEY) as upstream:
        answer = upstream.chat_sync(say, temperature=0.3, max_tokens=500)
    assert (answer.text, answer.finish_reason, answer.model) == ("hello", "stop", "m-2026")
    assert answer.message == {"role": "assistant", "content": "hello"}
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (10, 2)
    assert answer.cost is None  # nobody knows what this endpoint charges
    assert answer.latency_ms >= answer.attempts[0].latency_ms > 0
    assert [(a.status, a.request_id) for a in answer.attempts] == [(200, "r-7")]
    method, path, headers, _ = provider.requests[0]
    assert (method, path, headers["Authorization"]) == ("POST", "/v1/chat/completions", f"Bearer {KEY}")
    assert provider.body() == {"model": "m", "messages": say, "temperature": 0.3, "max_tokens": 500}


def test_tools_form_and_another_model_are_sent(provider: Any, say: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    form = {"type": "json_object"}
    with provider.upstream() as upstream:
        upstream.chat_sync(say, tools=tools, response_format=form, tool_choice="required", model="other")
    body = provider.body()
    assert (body["tools"], body["response_format"], body["tool_choice"]) == (tools, form, "required")
    assert body["model"] == "other"


def test_an_own_price_gives_the_cost(provider: Any, say: Any) -> None:
    prices = PriceTable({"m-*": {"input": 1, "output": 2}})
    with provider.upstream(prices=prices) as upstream:
        assert upstream.chat_sync(say).cost == 10 * 1000 + 2 * 2000  # nano-USD: 10 and 2 tokens


def test_numbers_stay_exact_and_tool_arguments_untouched(provider: Any, answer_of: Any) -> None:
    arguments = f'{{"id":  {BIG}, "x": 1.10, "s": "\\u00e9"}}'
    call_ = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call_], "n": BIG}
    provider.answers = [(200, answer_of(choices=[{"message": message}]), {})]
    history = [{"role": "user", "content": "x", "id": BIG}, message]
    with provider.upstream() as upstream:
        answer = upstream.chat_sync(history, seed=BIG)
    assert answer.message["n"] == BIG
    assert answer.tool_calls[0].arguments == arguments
    assert (answer.tool_calls[0].id, answer.tool_calls[0].name) == ("c", "f")
    assert answer.text == ""
    sent = provider.body()
    assert sent["seed"] == sent["messages"][0]["id"] == BIG
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == arguments


def test_text_in_parts_is_joined(provider: Any, say: Any, answer_of: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    provider.answers = [(200, answer_of(choices=[{"message": {"role": "assistant", "content": parts}}]), {})]
    with provider.upstream() as upstream:
        answer = upstream.chat_sync(say)
    assert (answer.text, answer.finish_reason, answer.tool_calls) == ("ab", None, ())


def test_absent_usage_is_none_and_not_zero(provider: Any, say: Any, answer_of: Any) -> None:
    provider.answers = [(200, answer_of(usage=None), {})]
    with provider.upstream(prices=PriceTable({"*": {"input": 1, "output": 1}})) as upstream:
        answer = upstream.chat_sync(say)
    assert answer.usage is None
    assert answer.cost is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [('{"a": ', "not valid JSON"), ('{"a": NaN}', "NaN is not JSON"), ({"a": 1}, "must be JSON text")],
)
def test_prx_05_bad_json_in_a_tool_argument_is_found_before_any_network_use(
    provider: Any, arguments: Any, reason: str
) -> None:
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}]},
    ]
    with provider.upstream() as upstream, pytest.raises(BadRequestError, match=reason) as caught:
        upstream.chat_sync(history)
    assert "messages[1].tool_calls[0]" in str(caught.value)
    assert (caught.value.status, caught.value.attempts, provider.requests) == (400, (), [])


@pytest.mark.parametrize(
    ("messages", "params", "reason"),
    [
        ([], {}, "messages is empty"),
        (["hi"], {}, r"messages\[0\] is a str"),
        ([{"content": "hi"}], {}, r"messages\[0\] has no role"),
        ([{"role": "user", "content": "hi"}], {"stream": True}, "stream"),
        ([{"role": "user", "content": "hi"}], {"temperature": float("nan")}, "cannot be written as JSON"),
        ([{"role": "user", "content": {1, 2}}], {}, "cannot be written as JSON"),
    ],
)
def test_a_request_that_no_provider_could_take_is_not_sent(
    provider: Any, messages: Any, params: dict[str, Any], reason: str
) -> None:
    with provider.upstream() as upstream, pytest.raises(BadRequestError, match=reason):
        upstream.chat_sync(messages, **params)
    assert provider.requests == []


def test_an_empty_tool_argument_and_a_lone_surrogate_are_sent_as_they_are(provider: Any) -> None:
    history = [
        {"role": "user", "content": "half \ud83d"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]},
    ]
    with provider.upstream() as upstream:
        upstream.chat_sync(history)
    assert provider.body()["messages"] == history


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, b"<html>login</html>", {"Content-Type": "text/html"}), "not JSON"),
        ((200, {"hello": 1}, {}), "no message"),
        ((200, {"choices": []}, {}), "no message"),
        ((200, b"[]", {}), "no message"),
        ((404, b"<html>", {}), "HTTP 404"),
        (
            (307, b"", {"Location": "https://u:p@new.example/v1/chat/completions?t=secret"}),
            "redirects to https://new.ex",
        ),
    ],
)
def test_what_is_no_chat_completion_is_said_to_be_none(provider: Any, say: Any, answer: Any, reason: str) -> None:
    provider.answers = [answer]
    with provider.upstream() as upstream, pytest.raises(BadAnswerError, match=reason) as caught:
        upstream.chat_sync(say)
    assert "mostly ends in /v1" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(provider.requests) == 1


def test_a_host_name_that_no_network_knows_how_to_write_is_refused() -> None:
    with pytest.raises(BadRequestError, match="not the address of an endpoint"):
        Upstream(f"http://{'a' * 64}.example/v1", "m")


def test_an_error_of_nothing_but_brackets_and_a_redirection_to_nowhere_are_errors_like_others(
    provider: Any, say: Any
) -> None:
    provider.answers = [(400, b"[" * 200_000, {}), (307, b"", {"Location": "http://[bad/v1"})]
    with provider.upstream() as upstream:
        with pytest.raises(BadRequestError, match="HTTP 400"):
            upstream.chat_sync(say)
        with pytest.raises(BadAnswerError, match=r"redirects to http://\[bad/v1"):
            upstream.chat_sync(say)


def test_an_error_under_status_200_counts_as_the_error_that_it_is(provider: Any, say: Any, clock: Any) -> None:
    provider.answers = [(200, {"error": {"code": 503, "message": "provider is down"}}, {})]
    with (
        provider.upstream(**clock.options) as upstream,
        pytest.raises(UpstreamError, match="provider is down") as caught,
    ):
        upstream.chat_sync(say)
    assert (caught.value.kind, caught.value.status, len(provider.requests)) == ("overloaded", 503, 3)


def test_an_endless_answer_is_cut_off(provider: Any, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "LARGEST_ANSWER", 1000)
    provider.answers = [(200, b" " * 5000, {})]
    with provider.upstream() as upstream, pytest.raises(BadAnswerError):
        upstream.chat_sync(say)


def test_the_key_is_never_shown(provider: Any, say: Any, clock: Any) -> None:
    echo = {"error": {"message": f"Incorrect API key provided: {KEY}, Authorization: Bearer {KEY}"}}
    provider.answers = [(500, echo, {}), (401, echo, {})]
    upstream = Upstream(
        provider.base_url.replace("http://", "http://user:passw0rd@") + "?key=AIzaTESTTESTTEST",
        "m",
        KEY,
        **clock.options,
    )
    with upstream, pytest.raises(UpstreamError) as caught:
        upstream.chat_sync(say)
    shown = str(caught.value) + repr(caught.value) + repr(upstream) + repr(caught.value.attempts)
    for secret in (KEY, "passw0rd", "AIzaTEST"):
        assert secret not in shown
    assert "[key]" in shown
    assert provider.requests[0][1].endswith("?key=AIzaTESTTESTTEST")  # the provider got it


def test_words_of_a_provider_are_cut_short_and_freed_of_control_characters(provider: Any, say: Any) -> None:
    provider.answers = [(400, {"error": {"message": "bad \x1b[31m thing\n" + "x" * 5000}}, {})]
    with provider.upstream() as upstream, pytest.raises(BadRequestError) as caught:
        upstream.chat_sync(say)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "url", ["", "localhost:80", "ftp://h/v1", "http://", "http://h:99999/v1", "/v1", "http://[::1/v1", "http://a..b/v1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadRequestError, match="not the address of an endpoint"):
        Upstream(url, "m")


def test_a_key_with_a_line_break_inside_is_refused_without_repeating_it() -> None:
    with pytest.raises(ReliveError) as caught:
        Upstream("http://127.0.0.1:1/v1", "m", f"{KEY}\n{KEY}")
    assert KEY not in str(caught.value)


def test_blanks_around_a_key_and_the_full_path_of_an_address_do_no_harm(provider: Any, say: Any) -> None:
    with Upstream(f" {provider.base_url}/chat/completions/ ", "m", f"{KEY}\n") as upstream:
        upstream.chat_sync(say)
    assert provider.requests[0][1] == "/v1/chat/completions"
    assert provider.requests[0][2]["Authorization"] == f"Bearer {KEY}"


def test_a_user_in_an_address_is_sent_unless_there_is_a_key(provider: Any, say: Any) -> None:
    url = provider.base_url.replace("http://", "http://user:pass%40word@")
    with Upstream(url, "m") as plain, Upstream(url, "m", KEY) as keyed:
        plain.chat_sync(say)
        keyed.chat_sync(say)
    sent = [request[2]["Authorization"] for request in provider.requests]
    assert sent == ["Basic dXNlcjpwYXNzQHdvcmQ=", f"Bearer {KEY}"]  # base64 of user:pass@word


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    provider: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with provider.upstream() as upstream:
        assert upstream.chat_sync(say).text == "hello"


def test_a_proxy_of_the_environment_is_used_for_other_hosts(
    provider: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", provider.base_url.removesuffix("/v1"))
    monkeypatch.delenv("no_proxy", raising=False)
    with Upstream("http://model.example/v1", "m") as upstream:
        assert upstream.chat_sync(say).text == "hello"
    assert provider.requests[0][2]["Host"] == "model.example"


def test_a_server_without_tls_is_not_tried_again_over_tls(provider: Any, say: Any, clock: Any) -> None:
    url = provider.base_url.replace("http://", "https://")
    with Upstream(url, "m", **clock.options) as upstream, pytest.raises(UnreachableError, match="TLS failed") as caught:
        upstream.chat_sync(say)
    assert len(caught.value.attempts) == 1


def test_models_are_listed(provider: Any) -> None:
    provider.answers = [(200, {"object": "list", "data": [{"id": "a"}, {"id": "b"}, {}]}, {})]
    with provider.upstream() as upstream:
        assert upstream.models_sync() == ["a", "b"]
    assert provider.requests[0][:2] == ("GET", "/v1/models")


def test_one_object_serves_several_event_loops_one_after_the_other(provider: Any, say: Any) -> None:
    with provider.upstream() as upstream:
        texts = [asyncio.run(upstream.chat(say)).text for _ in range(3)]
    assert texts == ["hello"] * 3


def test_the_sync_call_works_inside_a_running_event_loop(provider: Any, say: Any) -> None:
    async def main() -> str:
        return upstream.chat_sync(say).text

    with provider.upstream() as upstream:
        assert asyncio.run(main()) == "hello"


def test_inside_async_with_calls_run_on_the_own_loop_and_no_thread_is_made(provider: Any, say: Any) -> None:
    async def main() -> list[str]:
        before = threading.active_count()
        async with provider.upstream() as upstream:
            answers = await asyncio.gather(*(upstream.chat(say) for _ in range(20)))
            assert threading.active_count() == before
        return [answer.text for answer in answers]

    assert asyncio.run(main()) == ["hello"] * 20


def test_a_closed_object_can_be_used_again(provider: Any, say: Any) -> None:
    upstream = provider.upstream()
    for _ in range(2):
        assert upstream.chat_sync(say).text == "hello"
        upstream.close()
        upstream.close()


def test_many_threads_may_call_at_once(provider: Any, say: Any) -> None:
    texts: list[str] = []
    with provider.upstream() as upstream:
        threads = [threading.Thread(target=lambda: texts.append(upstream.chat_sync(say).text)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert texts == ["hello"] * 8


def test_closing_gives_a_call_under_way_a_clear_error(provider: Any, say: Any) -> None:
    provider.answers = ["hang"]
    upstream = provider.upstream()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            upstream.chat_sync(say)
        except UpstreamError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert provider.asked.wait(20)
    upstream.close()
    thread.join(20)
    assert "was closed" in str(errors[0])


def test_a_cancelled_call_ends_and_stays_cancelled(provider: Any, say: Any) -> None:
    provider.answers = ["hang"]

    async def main() -> None:
        task = asyncio.ensure_future(upstream.chat(say))
        await asyncio.to_thread(provider.asked.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with provider.upstream() as upstream:
        asyncio.run(main())


def _ask_in_child(upstream: Upstream, say: Any, results: Any) -> None:
    results.send(upstream.chat_sync(say).text)
    upstream.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_calls_with_connections_of_its_own(provider: Any, say: Any) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with provider.upstream() as upstream:
        upstream.chat_sync(say)
        child = context.Process(target=_ask_in_child, args=(upstream, say, theirs))
        child.start()
        assert ours.poll(20)
        assert ours.recv() == "hello"
        child.join(20)
        assert child.exitcode == 0
        assert upstream.chat_sync(say).text == "hello"  # the parent's are unharmed
    ours.close()
    theirs.close()


@pytest.mark.parametrize("ending", ["upstream.close()", "del upstream", "pass", "asyncio.run(upstream.aclose())"])
def test_however_it_ends_no_connection_and_no_thread_is_left(provider: Any, tmp_path: Path, ending: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio\nfrom relive.llm import Upstream\n"
        f"upstream = Upstream({provider.base_url!r}, 'm')\n"
        "say = [{'role': 'user', 'content': 'hi'}]\n"
        "print(upstream.chat_sync(say).text, asyncio.run(upstream.chat(say)).text)\n" + ending + "\n"
    )
    ran = subprocess.run([sys.executable, "-W", "error", program], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hello hello\n", "")


def test_an_object_that_is_forgotten_ends_its_thread(provider: Any, say: Any) -> None:
    upstream = provider.upstream()
    upstream.chat_sync(say)
    named = [thread for thread in threading.enumerate() if thread.name == "relive-upstream"]
    del upstream
    gc.collect()
    for thread in named:
        thread.join(10)
    assert named
    assert not any(thread.is_alive() for thread in named)


def test_a_record_becomes_json(provider: Any, say: Any) -> None:
    import msgspec

    with provider.upstream() as upstream:
        answer = upstream.chat_sync(say)
    assert json.loads(msgspec.json.encode(answer))["attempts"][0]["status"] == 200
