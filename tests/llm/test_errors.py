"""Telling errors apart by what common providers really send, and blanking out what is secret."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.gateway.routes import prompt_tokens_in
from relive.llm import errors
from relive.llm.errors import RULES, Rule, classify, quote, read_error, shown_url


def body(message: str, **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


TOO_LONG = [
    (400, body("Input is too large", code="context_length_exceeded", type="invalid_request_error")),
    (400, body("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.")),
    (400, body("prompt is too long: 210000 tokens > 200000 maximum", type="invalid_request_error")),
    (
        400,
        b"[" + body("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).") + b"]",
    ),
    (400, b'{"message": "Prompt contains 65673 tokens, too large for model with 32768 maximum context length"}'),
    (400, body("request (5031 tokens) is too much", type="exceed_context_size_error", n_ctx=2048)),
    (400, body("the request exceeds the available context size. try increasing the context size", code=400)),
    (422, body("Please reduce the length of the messages or completion.")),
]

OTHERS = [
    (401, body("Incorrect API key provided", code="invalid_api_key"), errors.AuthenticationError),
    (403, body("Your account may not use this"), errors.AuthenticationError),
    (
        400,
        body("API key not valid. Please pass a valid API key.", status="INVALID_ARGUMENT"),
        errors.AuthenticationError,
    ),
    (404, body("The model `gpt-9` does not exist or you do not have access to it."), errors.ModelUnavailableError),
    (404, body('model "qwen" not found, try pulling it first'), errors.ModelUnavailableError),
    (400, body("The requested model is not available"), errors.ModelUnavailableError),
    (400, body("gone", code="model_decommissioned"), errors.ModelUnavailableError),
    (404, b"", errors.BadAnswerError),
    (404, b'{"detail": "Not Found"}', errors.BadAnswerError),
    (429, body("Rate limit reached for tokens per minute (TPM)", code="rate_limit_exceeded"), errors.RateLimitedError),
    (429, b"", errors.RateLimitedError),
    (429, body("You exceeded your current quota", code="insufficient_quota"), errors.QuotaExceededError),
    (402, body("Insufficient credits"), errors.QuotaExceededError),
    (400, body("Your credit balance is too low to access the API."), errors.QuotaExceededError),
    (400, body("quota exceeded for this project"), errors.QuotaExceededError),
    (529, body("Overloaded", type="overloaded_error"), errors.OverloadedError),
    (500, b"oops", errors.OverloadedError),
    (503, b"<html>maintenance</html>", errors.OverloadedError),
    (504, b"", errors.UpstreamTimeoutError),
    (408, b"", errors.UpstreamTimeoutError),
    (400, body("filtered", code="content_filter"), errors.PolicyError),
    (400, body("The response was filtered due to Azure OpenAI's content management policy"), errors.PolicyError),
    (400, body("max_tokens must be between 1 and 4096"), errors.BadRequestError),
    (400, body("image too large"), errors.BadRequestError),
    (422, b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', errors.BadRequestError),
    (413, b"", errors.BadRequestError),
    (409, b"", errors.UpstreamError),
]


@pytest.mark.parametrize(("status", "answer"), TOO_LONG)
def test_a_prompt_that_is_too_long_is_recognised_however_it_is_said(status: int, answer: bytes) -> None:
    assert classify(status, answer)[0] is errors.ContextOverflowError


@pytest.mark.parametrize(("status", "answer", "kind"), OTHERS)
def test_other_errors_get_their_own_kind(status: int, answer: bytes, kind: type[errors.UpstreamError]) -> None:
    assert classify(status, answer)[0] is kind


FILE = Path(__file__).parents[1] / "data" / "provider_errors.jsonl"
ANSWERS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("answer", ANSWERS, ids=[f"{a['provider']}-{a['status']}-{n}" for n, a in enumerate(ANSWERS)])
def test_prx_12_what_providers_really_answer_is_understood(answer: dict[str, Any]) -> None:
    text = answer["body"] if isinstance(answer["body"], str) else json.dumps(answer["body"])
    status = 500 if answer["status"] == 200 else answer["status"]  # an error inside a stream that began with 200
    kind, words = classify(status, text.encode())
    assert kind.kind == answer["kind"]
    assert prompt_tokens_in(words) == answer["tokens"] if "tokens" in answer else True
    retryable = kind in (errors.RateLimitedError, errors.OverloadedError, errors.UpstreamTimeoutError)
    assert retryable is not kind.permanent


def test_the_answers_of_all_common_providers_are_there() -> None:
    assert len(ANSWERS) >= 60
    named = {answer["provider"] for answer in ANSWERS}
    assert named >= {"openai", "deepseek", "anthropic", "gemini", "vllm", "llama.cpp", "ollama", "sglang"}


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (429, body("quota exceeded")),
        (400, body("max_tokens must be between 1 and 4096")),
        (429, body("tokens per minute limit reached")),
        (400, body("image too large")),
        (400, body("The tool's description talks about context windows and their length")),
    ],
)
def test_prx_12_what_only_sounds_like_a_prompt_that_is_too_long_is_something_else(status: int, answer: bytes) -> None:
    assert classify(status, answer)[0] is not errors.ContextOverflowError


def test_own_rows_come_before_the_table() -> None:
    own = Rule(error=errors.PolicyError, statuses=frozenset({400}), wording="forbidden fruit")
    assert classify(400, body("Forbidden FRUIT"), (own, *RULES))[0] is errors.PolicyError
    assert classify(400, body("something else"), (own, *RULES))[0] is errors.BadRequestError


@pytest.mark.parametrize(
    ("answer", "codes", "message"),
    [
        (b'{"error": "plain words"}', set(), "plain words"),
        (b'{"error": {"message": "m", "code": 400, "type": "T", "status": "S"}}', {"t", "s"}, "m"),
        (b'{"message": "m", "code": "C"}', {"c"}, "m"),
        (b'{"detail": [1]}', set(), "[1]"),
        (b"not json", set(), "not json"),
        (b"<html>page</html>", set(), ""),
        (b"", set(), ""),
        (b"7", set(), ""),
        (b"\xff\xfe", set(), "\ufffd\ufffd"),
        (b"[" * 200_000, set(), "[" * 2_000),
    ],
)
def test_codes_and_message_are_read_from_every_form(answer: bytes, codes: set[str], message: str) -> None:
    assert read_error(answer) == (codes, message)


@given(status=st.integers(400, 599), answer=st.binary(max_size=200))
def test_any_error_answer_gets_a_kind(status: int, answer: bytes) -> None:
    assert issubclass(classify(status, answer)[0], errors.UpstreamError)


@pytest.mark.parametrize(
    "words",
    [
        "Incorrect key: sk-proj-abcd1234efgh5678",
        "sk-abcd****************5678 is wrong",
        "header Authorization: Bearer abcdefghijklmnop",
        "https://x/v1?key=AIzaSyA1234567890",
        "see https://user:abcdefgh5678@host/",
        '{"api_key": "abcdefgh12345678"}',
        "my own key TOPSECRET-1 was refused",
    ],
)
def test_what_looks_like_a_key_is_blanked_out(words: str) -> None:
    shown = quote(words, "TOPSECRET-1")
    assert "[key]" in shown
    for secret in ("abcd", "5678", "AIza", "TOPSECRET"):
        assert secret not in shown


def test_ordinary_words_are_left_as_they_are() -> None:
    words = "max_tokens: 4096 is too large; the task-oriented risk-assessment of tokens = 12 failed"
    assert quote(words) == words


def test_a_placeholder_for_a_key_does_not_garble_the_words() -> None:
    assert quote("no such thing as x in text", "x") == "no such thing as [key] in text"


def test_a_shown_address_holds_no_secret() -> None:
    assert shown_url("https://u:p@h.example:8443/v1?key=k#f") == "https://h.example:8443/v1"
    assert shown_url("https://u:p@[::1/v1?key=k#f") == "https://[::1/v1"
