"""Settings: every name has its place in the file and the environment, and what is wrong is named."""

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from relive.experience import Transition
from relive.server import logs
from relive.server.build import build, make_cache, make_routes, public
from relive.server.serve import address, listen
from relive.server.settings import SettingsError, json_schema, load

WHOLE = """
time_zone = "Europe/Berlin"
fallbacks = ["small"]

[server]
port = 9000
keys = "required"

[store]
path = "agents.db"
max_age_days = 30

[[models]]
name = "large"
upstream = "https://api.example.com/v1"
model = "large-2026"
api_key_env = "EXAMPLE_KEY"
price = { input = 2.5, output = 10, cached = 1.25 }
window = 128_000
rpm = 500
fallbacks = ["small"]

[[models]]
name = "small"
upstream = "http://127.0.0.1:8080/v1"

[tiers]
high_quality = ["large", "small"]

[[budgets]]
scope = "agent:router"
month = 20.50

[[rewards]]
name = "short"
kind = "length_band"
maximum = 400

[[metrics]]
name = "solved"
type = "boolean"
"""


def written(folder: Path, text: str) -> Path:
    (folder / "relive.toml").write_text(text)
    return folder / "relive.toml"


def test_a_file_and_the_environment_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIVE_SERVER__PORT", "9100")
    monkeypatch.setenv("RELIVE_CAPTURE__DRAIN", "true")
    monkeypatch.setenv("RELIVE_CACHE__MODE", "read")
    monkeypatch.setenv("RELIVE_FILE", "something else's")
    monkeypatch.setenv("EXAMPLE_KEY", "sk-example-key")
    settings = load(written(tmp_path, WHOLE), server={"host": "::1"})
    assert (settings.server.host, settings.server.port, settings.server.keys) == ("::1", 9100, "required")
    assert settings.capture.drain
    assert (settings.cache.mode, load(None).cache.mode) == ("read", "read")
    routes = make_routes(settings)
    assert routes.models["large"].endpoint.key == "sk-example-key"
    assert str(routes.models["large"].price.cached) == "1.25"  # type: ignore[union-attr]
    assert [m.name for m in routes.candidates("high_quality")] == ["large", "small"]
    assert "sk-example-key" not in json.dumps(public(settings))


def test_the_cache_is_off_unless_it_is_turned_on(tmp_path: Path) -> None:
    assert make_cache(load(None)) is None
    made = make_cache(load(written(tmp_path, '[cache]\nmode = "on"\nmax_age = 5\nmax_bytes = 1000')))
    assert made is not None
    assert made.allowed(None) == (True, True)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")])  # noqa: S104
def test_programs_on_the_same_machine_need_no_name_to_reach_it(host: str, shown: str) -> None:
    with listen(host, 0) as listening:
        port = listening.getsockname()[1]
        assert address(listening, near=True) == f"http://{shown}:{port}"


def test_every_setting_is_in_the_schema_with_its_meaning() -> None:
    schema = json_schema()
    assert set(schema["properties"]) >= {"server", "store", "models", "tiers", "budgets", "rewards", "metrics", "cache"}
    assert schema["additionalProperties"] is False
    model = schema["$defs"]["ModelTable"]["properties"]
    assert model["api_key_env"]["description"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nport = 99999", "server.port"),
        ("[server]\nprot = 1", "server.prot: there is no such setting"),
        ("prot = 1", "prot: there is no such setting"),
        ('[cache]\nmode = "always"', "cache.mode"),
        ("[cache]\nmax_age = 0", "cache.max_age"),
        ('[[models]]\nname = "a"', "models.0.upstream"),
        ('[[models]]\nname = "a"\nupstream = "x"\napi_key_env = "A"\napi_key_file = "B"', "not both"),
        ('time_zone = "Mars"', "is no time zone"),
        ('[[budgets]]\nscope = "everyone"', "agent:NAME"),
        ("[[budgets]]\nday = -1", "budgets.0.day"),
        ('[[metrics]]\nname = "a"\n[[metrics]]\nname = "a"', "twice"),
        ('[[metrics]]\nname = "a"\nminimum = 2\nmaximum = 1', "minimum is above maximum"),
        ("a = [", "no TOML file"),
    ],
)
def test_what_is_wrong_is_named_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(written(tmp_path, text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_value_that_may_be_a_secret_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(written(tmp_path, '[[models]]\nname = "a"\nupstream = "x"\nrpm = "sk-secret-AAAABBBB"'))
    assert "sk-secret" not in str(caught.value)


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-1\n")
    key.chmod(0o644)
    models = [{"name": "a", "upstream": "http://x/v1", "api_key_file": key}]
    with pytest.raises(Exception, match="chmod 600"):
        make_routes(load(None, models=models))
    key.chmod(0o600)
    assert make_routes(load(None, models=models)).models["a"].endpoint.key == "sk-1"


def test_budgets_start_from_what_was_spent_before_there_were_any(tmp_path: Path) -> None:
    models = [{"name": "a", "upstream": "http://x/v1"}]
    store = {"path": tmp_path / "s.db"}
    first = build(load(None, models=models, store=store))
    spent = [Transition(state=1, action=1, cost=7, agent=agent, created_at=datetime.now(UTC)) for agent in ("a", "b")]
    first.memory.storage.append(spent)
    first.close()
    limits = [{"month": 1}, {"scope": "agent:a", "day": 1}, {"scope": "key:1", "day": 1}]
    for _ in range(2):
        parts = build(load(None, models=models, store=store, budgets=limits))
        budgets = parts.gateway.budgets
        assert budgets is not None
        assert budgets.spent("all", "month") == 14
        assert budgets.spent("agent:a", "day") == 7
        assert budgets.spent("key:1", "day") == 0
        parts.close()


def test_a_second_server_on_one_store_records_and_says_who_draws(tmp_path: Path) -> None:
    over: dict[str, Any] = {"models": [{"name": "a", "upstream": "http://x/v1"}], "store": {"path": tmp_path / "s.db"}}
    first = build(load(None, **over), url="http://127.0.0.1:8400")
    second = build(load(None, **over))
    assert first.notes == []
    assert any("http://127.0.0.1:8400" in note for note in second.notes)
    assert not second.memory.storage.owns_index
    second.close()
    first.close()


# Logs


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What is logged; the loggers are as before afterwards."""
    names = ("relive", "uvicorn")
    before = [(logging.getLogger(n), logging.getLogger(n).handlers[:], logging.getLogger(n).level) for n in names]
    yield io.StringIO()
    for logger, handlers, level in before:
        logger.handlers[:], logger.propagate = handlers, True
        logger.setLevel(level)


def test_prx_14_a_line_of_the_log_is_json_without_secrets(log: io.StringIO) -> None:
    logs.set_up("debug", "json", log)
    logger = logging.getLogger("relive.gateway")
    secret = "sk-test-AAAABBBBCCCCDDDD"
    logger.warning("it said Bearer %s", secret, extra={"url": f"https://x.test/?key={secret}", "count": 3})
    try:
        raise ValueError(secret)
    except ValueError:
        logger.exception("it broke")
    first, second = (json.loads(line) for line in log.getvalue().splitlines())
    assert (first["level"], first["logger"], first["count"]) == ("warning", "relive.gateway", 3)
    assert "ValueError" in second["exception"]
    assert secret not in log.getvalue()


def test_a_line_for_people_and_the_level_asked_for(log: io.StringIO) -> None:
    logs.set_up("info", "text", log)
    logger = logging.getLogger("relive.server")
    logger.debug("not this")
    logger.info("this", extra={"agent": "a"})
    logging.getLogger("uvicorn.error").error("ASGI callable returned without completing response.")
    (line,) = log.getvalue().splitlines()
    assert line.endswith("INFO relive.server this agent=a")
