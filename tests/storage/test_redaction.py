"""Nothing secret reaches the disk, nothing ordinary is touched."""

import base64
import hashlib
import json
import uuid
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.experience import Feedback, TokenTrace, Transition
from relive.storage.redaction import DEFAULT, NOT_KEPT, InvalidRedactionError, Redactor

KEY = "sk-test-AAAABBBBCCCCDDDD"
GOOGLE = "AIzaTESTTESTTEST"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAx+y/==\n-----END RSA PRIVATE KEY-----"
PERSONAL = Redactor(personal=("email", "card", "phone"))

IN_TEXT = {
    # keys of providers, wherever they stand
    KEY: "[redacted:api_key …DDDD]",
    f"use {KEY}, please": "use [redacted:api_key …DDDD], please",
    f"line\n{KEY}\nline": "line\n[redacted:api_key …DDDD]\nline",
    rf"escaped\n{KEY}\tend": r"escaped\n[redacted:api_key …DDDD]\tend",
    "sk-proj-abc_DEF-0123456789abcdefghij": "[redacted:api_key …ghij]",
    f"key {GOOGLE}.": "key [redacted:api_key …TEST].",
    "AKIAIOSFODNN7EXAMPLE": "[redacted:api_key …MPLE]",
    "ghp_abcdefghijklmnopqrst0123456789ABCDEF": "[redacted:api_key …CDEF]",
    "github_pat_11ABCDEFG0abcdefghij_klmnop": "[redacted:api_key …mnop]",
    "xoxb-1234567890-abcdefghij": "[redacted:api_key …ghij]",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH": "[redacted:api_key …EFGH]",
    "hvs.CAESIJabcdefghij0123456789": "[redacted:api_key …6789]",
    "dapi0123456789abcdef0123456789abcdef": "[redacted:api_key …cdef]",
    "lsv2_pt_0123456789abcdef0123456789abcdef_0123456789": "[redacted:api_key …6789]",
    "fw_3ZabcDEFghij0123456789kl": "[redacted:api_key …89kl]",
    "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDAtMDAwMC0wMDAw": "[redacted:api_key …MDAw]",
    "https://hooks.slack.com/services/T00000000/B00000000/abcdefghijkl0123": "https://[redacted:api_key …0123]",
    "https://discord.com/api/webhooks/123456789012345678/abc_DEF-ghijklmnop0123": "https://[redacted:api_key …0123]",
    "bot 123456789:AAabcdefghijklmnopqrstuvwxyz0123456 on": "bot [redacted:api_key …3456] on",
    # tokens and headers
    f"token is in {JWT}!": "token is in [redacted:token …sR8U]!",
    f"Bearer {KEY}": "Bearer [redacted:api_key …DDDD]",
    "Authorization: Bearer abc123": "Authorization: Bearer [redacted:token]",
    "authorization: Basic dXNlcjpwYXNzd29yZA==": "authorization: Basic [redacted:password]",
    "curl -H 'x-api-key: 0123456789abcdef'": "curl -H 'x-api-key: [redacted:api_key …cdef]'",
    "curl -H 'Cookie: session=zzz; theme=dark' https://h": "curl -H 'Cookie: [redacted:cookie]' https://h",
    "Set-Cookie: sid=abc; Path=/; HttpOnly": "Set-Cookie: [redacted:cookie]",
    # passwords
    "password=hunter2": "password=[redacted:password]",
    "DB_PASSWORD=hunter2,x": "DB_PASSWORD=[redacted:password]",
    "password: hunter2 and more": "password: [redacted:password] and more",
    "password: correcthorse": "password: [redacted:password]",
    "my password is hunter2.": "my password is [redacted:password].",
    "psql --password hunter2 --user bob": "psql --password [redacted:password] --user bob",
    "user=bob&password=hunter2&x=1": "user=bob&password=[redacted:password]&x=1",
    'call {"password": "hun\\"ter2", "x": 1} now': 'call {"password": "[redacted:password]", "x": 1} now',
    "{'password': 'hunter2'}, 3": "{'password': '[redacted:password]'}, 3",
    "postgres://bob:s3cr@t@host:5432/db": "postgres://bob:[redacted:password]@host:5432/db",
    "Server=x;Password=abc123;Port=1": "Server=x;Password=[redacted:password];Port=1",
    "curl -s -u bob:hunter2 https://h": "curl -s -u bob:[redacted:password] https://h",
    "curl --user 'bob:hunter2' https://h": "curl --user 'bob:[redacted:password]' https://h",
    "mysql -u root -phunter2 shop": "mysql -u root -p[redacted:password] shop",
    "mysqldump -p'hunter2' shop": "mysqldump -p'[redacted:password]' shop",
    "machine h\n  login bob\n  password hunter": "machine h\n  login bob\n  password [redacted:password]",
    # names of keys and tokens
    f"https://h/v1?key={GOOGLE}&alt=json": "https://h/v1?key=[redacted:api_key …TEST]&alt=json",
    "https://h/cb?access_token=abcdef123456&x=1": "https://h/cb?access_token=[redacted:token …3456]&x=1",
    "export OPENAI_API_KEY='abcdef0123456789'": "export OPENAI_API_KEY='[redacted:api_key …6789]'",
    "client_secret: 9f8e7d6c5b4a": "client_secret: [redacted:secret]",
    "AccountKey=abcdef0123456789abcdef==;Endpoint=x": "AccountKey=[redacted:api_key …cdef];Endpoint=x",
    f"{PEM}\nafter": "[redacted:private_key]\nafter",
}


@pytest.mark.parametrize("text", IN_TEXT)
def test_a_secret_in_text_is_replaced_and_what_stands_around_it_stays(text: str) -> None:
    redacted, counts = DEFAULT.text(text)
    assert redacted == IN_TEXT[text]
    assert sum(counts.values()) == 1


IN_JSON: list[tuple[Any, Any]] = [
    ({"password": "correct horse"}, {"password": "[redacted:password]"}),
    ({"dbPassword": 12345678}, {"dbPassword": "[redacted:password]"}),
    ({"passwords": ["a", "b"]}, {"passwords": ["[redacted:password]", "[redacted:password]"]}),
    ({"headers": {"X-Api-Key": "abcdef01"}}, {"headers": {"X-Api-Key": "[redacted:api_key]"}}),
    ({"Authorization": "Bearer x"}, {"Authorization": "Bearer [redacted:token]"}),
    ({"authorization": ["Basic abc"]}, {"authorization": ["Basic [redacted:password]"]}),
    ([["cookie", "session=zzz"], ["a", "b"]], [["cookie", "[redacted:cookie]"], ["a", "b"]]),
    ({"name": "OPENAI_API_KEY", "value": "abcdef01"}, {"name": "OPENAI_API_KEY", "value": "[redacted:api_key]"}),
    (
        {"cookies": [{"name": "sid", "value": "abc", "domain": "d"}]},
        {"cookies": [{"name": "sid", "value": "[redacted:cookie]", "domain": "d"}]},
    ),
    ({"cookies": {"sid": "abc"}}, {"cookies": {"sid": "[redacted:cookie]"}}),
    ({"private_key": PEM}, {"private_key": "[redacted:private_key]"}),
    ({KEY: 1}, {"[redacted:api_key …DDDD]": 1}),
    ({KEY: 1, f"{KEY[:-8]}0000DDDD": 2}, {"[redacted:api_key …DDDD]": 1, "[redacted:api_key …DDDD] 2": 2}),
    ((KEY, None, 1.5), ["[redacted:api_key …DDDD]", None, 1.5]),
    # the arguments of a tool call are JSON inside text, and so may their values be
    (
        {"arguments": '{"user": "bob", "password": "hunter2"}'},
        {"arguments": '{"user": "bob", "password": "[redacted:password]"}'},
    ),
    ({"arguments": '{"b":{"token":"' + KEY + '"}}'}, {"arguments": '{"b":{"token":"[redacted:api_key …DDDD]"}}'}),
    (
        json.dumps({"body": json.dumps({"headers": [["cookie", "a=b"]], "password": 'q"\\'})}),
        json.dumps(
            {"body": json.dumps({"headers": [["cookie", "[redacted:cookie]"]], "password": "[redacted:password]"})}
        ),
    ),
    ('{"user": "bob", "password": "cut off', '{"user": "bob", "password": "[redacted:password]'),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), IN_JSON)
def test_a_secret_in_a_field_is_replaced(value: Any, expected: Any) -> None:
    redacted, counts = DEFAULT.value(value)
    assert redacted == expected
    assert counts


IMAGE = base64.b64encode(hashlib.shake_256(b"image").digest(60_000)).decode()
ORDINARY: list[Any] = [
    "I forgot my password: what shall I do?",
    "Password: please try again",
    "The password must be at least 8 characters long",
    "Your passcode is not the same as your PIN",
    "Authorization: the user must confirm with (yes) before the booking is changed",
    "the bearer of good news brings a secret token of love and a cookie",
    str(uuid.UUID(int=2**127 + 12345)),
    hashlib.sha256(b"x").hexdigest(),
    "4" * 300,
    "1234567890123456789",
    f"data:image/png;base64,{IMAGE}",
    IMAGE,
    "https://example.com:8080/a@b?id=1&page=2",
    "mailto:someone",
    "task-oriented, disk-based and sk-learn-style estimators of sk-container-id-1 sk-toggleable__label-arrow",
    "password = get_password()\ntoken = tokens[i]\npassword=user.password, api_key=os.environ['API_KEY']",
    "def login(self, username: str, password: str, token: Optional[str] = None) -> bool:",
    "PWD=/home/user/project",
    "PASSWORD_MIN_LENGTH = 8",
    "password: ${DB_PASSWORD} token: <your token> secret=**** api_key=YOUR_API_KEY",
    "eyJ hello. eyJhbGci without dots",
    "mysql -u root -p shop; mysql -P 3306 --protocol=tcp -h h; use curl -u user: or curl -u $USER:$PASS https://h",
    "machine learning needs a login and a password; hooks.slack.com/services/ and discord.com/api/webhooks/",
    "dapi_version, hvs.files, fw_update_from_the_cloud, lsv2_pt_ keys, at 12345678:AAfoo and 10:AA",
    {"token": "Hel", "logprob": -0.1, "bytes": [72, 101, 108]},
    {"tokens": [1, 2, 3], "max_tokens": 4096, "prompt_tokens": 17, "next_page_token": "CAUQAA1234567890abcdef"},
    {"type": "object", "properties": {"password": {"type": "string", "description": "The user's password"}}},
    {"required": ["password", "token"], "password": None, "secret": False, "api_key": "", "token": ""},
    {"key": "users/2024/01/file.pdf", "value": "plain", "name": "colour"},
    {"password": "The password must be at least 8 characters long."},
    {"name": "search", "arguments": '{"query": "cookie recipes with secret ingredients", "limit": 10}'},
    {"payment_id": "credit_card_7815826", "reservation": "JG7FMM", "flight": "HAT170"},
]


@pytest.mark.parametrize("value", ORDINARY, ids=lambda v: json.dumps(v)[:40])
def test_ordinary_values_survive(value: Any) -> None:
    for nested in (value, json.dumps(value), {"a": [json.dumps({"b": value})]}):
        assert DEFAULT.value(nested) == (nested, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to bob.smith+x@example.co.uk.", "write to [redacted:email]."),
        ("<a href='mailto:b@c.de'>", "<a href='mailto:[redacted:email]'>"),
        ("grüße@münchen.de", "[redacted:email]"),
        # test numbers that card issuers publish, and one with a wrong check digit
        ("card 4111 1111 1111 1111, exp 12/29", "card [redacted:card], exp 12/29"),
        ("378282246310005", "[redacted:card]"),
        ("5555-5555-5555-4444", "[redacted:card]"),
        ("6011000990139424", "[redacted:card]"),
        ("4111 1111 1111 1112", "4111 1111 1111 1112"),
        ("call +44 20 7946 0958 or (555) 123-4567", "call [redacted:phone] or [redacted:phone]"),
        ("555-123-4567", "[redacted:phone]"),
        # order numbers, times and versions are none of these
        ("order 1700000000000 of 2024-05-17 12:30:45.123456, v1.2.3, a@b, @name, 10-20-3000", ...),
        ("f47ac10b-58cc-4372-8567-0e02b2c3d479", ...),
    ],
)
def test_personal_data_is_replaced_only_where_asked_for(text: str, expected: Any) -> None:
    assert DEFAULT.text(text) == (text, {})
    assert PERSONAL.text(text)[0] == (text if expected is ... else expected)


def test_a_card_number_that_is_a_number_in_json_is_replaced() -> None:
    assert PERSONAL.value({"card": 4111111111111111, "id": 4111111111111112})[0] == {
        "card": "[redacted:card]",
        "id": 4111111111111112,
    }


def test_own_patterns_are_replaced_on_decoded_text() -> None:
    redactor = Redactor(patterns={"customer": r"\bC-\d{6}\b"})
    assert redactor.value({"note": 'for C-123456\n"C-654321"'}) == (
        {"note": 'for [redacted:customer]\n"[redacted:customer]"'},
        {"customer": 2},
    )
    greedy = Redactor(patterns={"word": r"[a-z]+"})
    once = greedy.text(f"abc {KEY}")[0]
    assert once == "[redacted:word] [redacted:api_key …DDDD]"
    assert greedy.text(once) == (once, {})


def test_with_a_hash_key_the_same_person_keeps_the_same_mark_and_nothing_else_shows() -> None:
    a, b = (Redactor(personal="email", hash_key=key) for key in (b"first key", b"second key"))  # type: ignore[arg-type]
    [one, same, other] = a.text("x@y.zz x@y.zz q@y.zz")[0].split(" #")[1:]
    assert one[:8] == same[:8] != other[:8]
    assert a.text("x@y.zz") != b.text("x@y.zz")
    assert "DDDD" not in a.text(KEY)[0]


@pytest.mark.parametrize(
    ("settings_", "named"),
    [
        ({"personal": ["birthday"]}, "birthday"),
        ({"patterns": {"x": "("}}, "'x'"),
        ({"patterns": {"x": "a*"}}, "empty"),
        ({"patterns": {"Not Good": "a"}}, "Not Good"),
        ({"hash_key": b"short"}, "hash_key"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings_: Any, named: str) -> None:
    with pytest.raises(InvalidRedactionError, match=named.replace("(", r"\(")):
        Redactor(**settings_)


def test_a_transition_redacted_in_text_loses_its_tokens_and_an_untouched_one_keeps_them() -> None:
    trace = TokenTrace(token_ids=np.array([1, 2]), mask=np.array([0, 1]))
    secret = Transition(state={"messages": [{"role": "user", "content": KEY}]}, action="a", tokens=trace)
    plain = Transition(state={"messages": [{"role": "user", "content": "hello"}]}, action="a", tokens=trace)
    kept, counts = DEFAULT.transition(secret)
    assert kept.tokens is None
    assert counts == {"api_key": 1}
    assert secret.state["messages"][0]["content"] == KEY, "what the caller holds is not touched"
    assert DEFAULT.transition(plain) == (plain, {})


def test_every_text_of_a_transition_and_of_feedback_is_looked_at() -> None:
    kept, counts = DEFAULT.transition(
        Transition(
            state=None,
            action=None,
            next_state={"x": KEY},
            agent=f"agent {KEY}",
            episode_id=KEY,
            group_id=KEY,
            policy=KEY,
            error=f"401: Incorrect API key provided: {KEY}",
            tags=("a", KEY),
        )
    )
    assert KEY not in repr(kept)
    assert counts == {"api_key": 7}
    assert kept.error == "401: Incorrect API key provided: [redacted:api_key …DDDD]"
    feedback, counts = DEFAULT.feedback(
        Feedback(episode_id=KEY, source=KEY, key=KEY, comment=f"leaked {KEY}", demonstration={"k": KEY})
    )
    assert KEY not in repr(feedback)
    assert feedback.episode_id == kept.episode_id == DEFAULT.identifier(KEY), "feedback still finds its episode"
    assert counts == {"api_key": 5}


def test_two_names_stay_two_names() -> None:
    redactor = Redactor(personal=["email"])
    assert redactor.identifier("a@x.com") != redactor.identifier("b@x.com")
    assert redactor.identifier("a@x.com") == redactor.identifier("a@x.com")
    assert "a@x.com" not in redactor.identifier("a@x.com")


def test_without_content_only_what_is_measured_remains() -> None:
    redactor = Redactor(content=False)
    trace = TokenTrace(token_ids=np.array([1, 2]), mask=np.array([0, 1]))
    kept, _ = redactor.transition(
        Transition(
            state="s", action="a", next_state="n", reward=1.0, cost=7, tokens=trace, error="Refused: you wrote …"
        )
    )
    assert (kept.state, kept.action, kept.next_state, kept.tokens) == (None, None, None, None)
    assert (kept.reward, kept.cost, kept.error) == (1.0, 7, "Refused")
    feedback, _ = redactor.feedback(Feedback(experience_id=1, reward=1.0, comment="c", demonstration="d"))
    assert (feedback.reward, feedback.comment, feedback.demonstration) == (1.0, NOT_KEPT, None)


def test_without_content_only_measures_and_short_words_of_info_remain() -> None:
    info = {
        "prompt": "who am I",
        "finish_reason": "stop",
        "status": "a whole sentence of the answer",
        "http_status": 200,
        "attempts": [{"model": "small-1", "latency_ms": 1.5, "message": "you wrote this", "you wrote": 1}],
        "injected": {"episode": "e1", "book": [True, 0.5], "lessons": [[3, "words of it", 2]]},
        "response_id": {"deep": [[[[[[[[1]]]]]]]]},
        "tags": ["x"],
    }
    kept, counts = Redactor(content=False).transition(Transition(state="s", action="a", info=info))
    assert counts == {}
    assert kept.info == {
        "finish_reason": "stop",
        "http_status": 200,
        "attempts": [{"model": "small-1", "latency_ms": 1.5}],
        "injected": {"episode": "e1", "book": [True, 0.5], "lessons": [[3, None, 2]]},
        "response_id": {"deep": [[[[[[[None]]]]]]]},
    }
    for text in ("words", {"prompt": "x"}, None):
        assert Redactor(content=False).transition(Transition(state="s", action="a", info=text))[0].info is None


def test_without_content_only_tags_of_one_short_word_remain() -> None:
    tags = ("relive:cached", "team/blue", "the customer is angry", "x" * 65, "Müller")
    kept, _ = Redactor(content=False).transition(Transition(state="s", action="a", tags=tags))
    assert kept.tags == ("relive:cached", "team/blue")


def test_nothing_is_taken_out_when_everything_is_switched_off() -> None:
    assert Redactor(secrets=False).value({"password": "hunter2", "k": KEY}) == ({"password": "hunter2", "k": KEY}, {})


def test_redaction_reads_the_stored_text_so_that_raw_json_and_escapes_hide_nothing() -> None:
    raw = msgspec.Raw(b'{"text":"\\u0073k-test-AAAABBBBCCCCDDDD","n":1.10,"url":"postgres:\\/\\/u:pw1@h"}')
    kept, counts = DEFAULT.transition(Transition(state=raw, action=[raw]))
    assert counts == {"api_key": 2, "password": 2}
    untouched = Transition(state=msgspec.Raw(b'{"n":1.10}'), action=None)
    assert DEFAULT.transition(untouched)[0] is untouched
    assert kept.state == {"text": "[redacted:api_key …DDDD]", "n": 1.1, "url": "postgres://u:[redacted:password]@h"}


ADVERSARIAL = (
    *("a", "sk-", "password=", "password: ", '"password":"', "\\", 'password\\\\\\"', "://a:", "eyJ.", "@", "a."),
    *("1 ", "Bearer ", "-----BEGIN RSA PRIVATE KEY-----", "cookie: a=", "{", "token is ", "[redacted:"),
)


def test_a_long_text_of_anything_is_read_once() -> None:
    """Each of these would never end, or take minutes, with a pattern that looks back at what it has seen."""
    for text in ADVERSARIAL:
        PERSONAL.value(text * (300_000 // len(text)))
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    PERSONAL.value(deep)


SECRETS = st.sampled_from(
    (KEY, GOOGLE, JWT, PEM, "AKIAIOSFODNN7EXAMPLE", "ghp_abcdefghij0123456789", "b@example.com", "4111 1111 1111 1111")
)
NAMES = "password api_key X-Api-Key authorization Set-Cookie token access_token secret name value key pwd cookies"
REST = (
    *("hunter2", "session=zzz;a=b", "null", "12", "postgres://u:pw1@h/db", "Bearer ", "Basic ", "--", "…", "é", "😀"),
    *(":", "=", "'", '"', "\\", "\\n", ",", ";", "&", "?", "://", "@", "/", "{", "}", "[", "]", "\\u003d", "%3D"),
)
PIECES = st.sampled_from((*NAMES.split(), *REST))
TEXTS = st.lists(SECRETS | PIECES | st.sampled_from([" ", ": ", " is ", "\n", "\x1b", "\x00"]), max_size=6).map("".join)
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers(0, 10**16),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(PIECES | TEXTS, inner, max_size=3)
        | inner.map(lambda v: json.dumps(v, ensure_ascii=False))
        | inner.map(lambda v: msgspec.json.encode(v).decode())
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=400)
@given(VALUES)
def test_redacting_twice_changes_nothing_more(value: Any) -> None:
    once, _ = PERSONAL.value(value)
    assert PERSONAL.value(once) == (once, {})


@settings(deadline=None, max_examples=400)
@given(VALUES)
def test_what_the_quick_look_calls_clean_is_clean(value: Any) -> None:
    _, counts = PERSONAL.value(value)
    assert not counts or PERSONAL.suspicious(msgspec.json.encode(value))


@settings(deadline=None, max_examples=200)
@given(
    secret=SECRETS,
    levels=st.lists(st.sampled_from(["list", "dict", "json", "text"]), max_size=5),
    before=st.sampled_from(["", " ", "\n", '"', "key=", "x: "]),
    after=st.sampled_from(["", " ", "\n", '"', ", ", "!"]),
)
def test_no_secret_survives_at_any_depth(secret: str, levels: list[str], before: str, after: str) -> None:
    value: Any = before + secret + after
    for level in levels:
        if level == "list":
            value = [1, value]
        elif level == "dict":
            value = {"a": value}
        elif level == "json":
            value = json.dumps(value)
        else:
            value = f"the answer was {value if isinstance(value, str) else json.dumps(value)} and no more"
    redacted, counts = PERSONAL.value(value)
    body = msgspec.json.encode(redacted).decode()
    for part in secret.split("\n")[:2]:
        assert part not in body
    assert sum(counts.values()) == 1
