"""From LiteLLM and TensorZero: what can be carried over is, and what cannot is said and never lost in silence."""

import json
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relive.cli.app import app
from relive.experience import Usage
from relive.server.build import make_routes
from relive.server.migrate import Draft, MigrationError, from_litellm, from_tensorzero
from relive.server.settings import load
from relive.storage import SqliteStorage

LITELLM = """
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: azure/gpt-4o-eu
      api_base: https://example.openai.azure.com
  - model_name: gpt-4o
    litellm_params:
      model: openai/gpt-4o
      api_key: os.environ/OPENAI_API_KEY
      rpm: 480
      tpm: 100000
      temperature: 0.2
    model_info:
      input_cost_per_token: 0.0000025
      output_cost_per_token: 1e-05
      max_input_tokens: 128000
  - model_name: gpt-4o
    litellm_params:
      model: openrouter/openai/gpt-4o
    rpm: 60
  - model_name: claude
    litellm_params: {model: anthropic/claude-sonnet-4-5, api_key: sk-ant-not-to-be-copied}
  - model_name: local
    litellm_params: {model: openai/llama, api_base: "http://127.0.0.1:8080/v1", timeout: 30}
  - model_name: "openai/*"
    litellm_params: {model: "openai/*"}
litellm_settings:
  num_retries: 2
  request_timeout: 90
  success_callback: [langfuse]
  default_fallbacks: [local]
router_settings:
  fallbacks:
    - gpt-4o: [claude, gone]
  model_group_alias: {best: gpt-4o}
  routing_strategy: latency-based-routing
general_settings:
  master_key: sk-1234
environment_variables:
  SOME_SECRET: abc
"""

TENSORZERO = """
[gateway]
bind_address = "0.0.0.0:3000"

[models.haiku-writer]
routing = ["openai", "aws", "local"]
timeouts = { non_streaming = { total_ms = 30000 } }

[models.haiku-writer.providers.openai]
type = "openai"
model_name = "gpt-5"
api_key_location = "env::MY_KEY"
cost = [
  { pointer = "/usage/prompt_tokens", cost_per_million = 1.25, required = true },
  { pointer = "/usage/completion_tokens", cost_per_million = 10.00, required = true },
  { pointer = "/usage/prompt_tokens_details/cached_tokens", cost_per_million = -1.125 },
]

[models.haiku-writer.providers.aws]
type = "aws_bedrock"
model_id = "anthropic.claude"

[models.haiku-writer.providers.local]
type = "vllm"
api_base = "http://127.0.0.1:8000/v1"
model_name = "llama"
api_key_location = "none"

[functions.write]
type = "chat"
[functions.write.variants.small]
type = "chat_completion"
model = "groq::llama-3.3-70b"
weight = 0.1
[functions.write.variants.large]
type = "chat_completion"
model = "haiku-writer"
weight = 0.9
[functions.write.variants.mixed]
type = "experimental_best_of_n_sampling"

[metrics.solved]
type = "boolean"
optimize = "max"
level = "episode"
[metrics.edits]
type = "float"
optimize = "min"
level = "inference"

[tools.search]
description = "Search"
"""


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def imported(draft: Draft, folder: Path, source: str) -> Any:
    """What `relive serve` makes of the draft's file."""
    return load(written(folder, "relive.toml", draft.toml(source)))


def run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_litellms_models_limits_prices_and_fallbacks_are_carried_over(tmp_path: Path, monkeypatch: Any) -> None:
    for variable in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, f"key of {variable}")
    draft = from_litellm(written(tmp_path, "config.yaml", LITELLM))
    settings = imported(draft, tmp_path, "config.yaml")
    models = {model.name: model for model in settings.models}
    assert list(models) == ["gpt-4o #1", "gpt-4o #2", "claude", "local"]
    first = models["gpt-4o #1"]
    assert (first.upstream, first.model, first.api_key_env) == ("https://api.openai.com/v1", "gpt-4o", "OPENAI_API_KEY")
    assert (first.rpm, first.tpm, first.window, first.timeout) == (480, 100_000, 128_000, 90.0)
    assert (first.price.input, first.price.output) == (Decimal("2.5"), Decimal(10))
    assert (models["gpt-4o #2"].model, models["gpt-4o #2"].rpm) == ("openai/gpt-4o", 60)
    assert (models["claude"].api, models["claude"].api_key_env) == ("anthropic", "ANTHROPIC_API_KEY")
    assert (models["local"].upstream, models["local"].api_key_env) == ("http://127.0.0.1:8080/v1", None)
    assert models["local"].timeout == 30.0
    assert first.fallbacks == ["claude"]
    assert settings.fallbacks == ["local"]
    assert settings.tiers == {"gpt-4o": ["gpt-4o #1", "gpt-4o #2"], "best": ["gpt-4o #1", "gpt-4o #2"]}
    assert settings.retries.max_attempts == 3
    routes = make_routes(settings)
    assert [one.name for one in routes.candidates("best")] == ["gpt-4o #1", "gpt-4o #2", "claude", "local"]


def test_what_litellm_has_and_the_gateway_has_not_is_said_and_no_key_is_copied(tmp_path: Path) -> None:
    draft = from_litellm(written(tmp_path, "config.yaml", LITELLM))
    said = " ".join(draft.notes)
    for words in (
        "azure/gpt-4o-eu",
        "openai/*",
        "temperature",
        "success_callback",
        "master_key",
        "SOME_SECRET",
        "gone",
    ):
        assert words in said, words
    assert "ANTHROPIC_API_KEY" in said
    text = draft.toml("config.yaml")
    assert "not-to-be-copied" not in text + said
    assert "sk-1234" not in text + said
    assert all(f"# - {note}" in text for note in draft.notes)


def test_a_model_for_any_name_comes_first(tmp_path: Path) -> None:
    text = """
model_list:
  - {model_name: named, litellm_params: {model: groq/llama}}
  - {model_name: "*", litellm_params: {model: "openai/*"}}
"""
    draft = from_litellm(written(tmp_path, "config.yaml", text))
    assert [model["name"] for model in draft.models] == ["any", "named"]
    assert "model" not in draft.models[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model_list: [", "line 1 is no YAML"),
        ("a: 1", "no model_list"),
        ("model_list: []", "no model that can be called"),
        ("model_list: [{model_name: m, litellm_params: {model: bedrock/x}}]", "does not speak"),
        ("!!python/object/apply:os.system ['true']", "no YAML"),
    ],
)
def test_a_file_that_is_none_of_litellms_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(MigrationError, match=words):
        from_litellm(written(tmp_path, "config.yaml", text))


def test_tensorzeros_models_functions_and_metrics_are_carried_over(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MY_KEY", "one")
    monkeypatch.setenv("GROQ_API_KEY", "two")
    draft = from_tensorzero(written(tmp_path, "tensorzero.toml", TENSORZERO))
    settings = imported(draft, tmp_path, "tensorzero.toml")
    models = {model.name: model for model in settings.models}
    assert list(models) == ["haiku-writer", "haiku-writer via local", "groq::llama-3.3-70b"]
    first = models["haiku-writer"]
    assert (first.model, first.api_key_env, first.timeout) == ("gpt-5", "MY_KEY", 30.0)
    assert first.fallbacks == ["haiku-writer via local"]
    assert (first.price.input, first.price.output, first.price.cached) == (
        Decimal("1.25"),
        Decimal(10),
        Decimal("0.125"),
    )
    assert settings.tiers == {"write": ["haiku-writer", "groq::llama-3.3-70b"]}
    assert [(m.name, m.type, m.level) for m in settings.metrics] == [
        ("solved", "boolean", "episode"),
        ("edits", "number", "experience"),
    ]
    assert (settings.server.host, settings.server.port) == ("0.0.0.0", 3000)  # noqa: S104
    said = " ".join(draft.notes)
    for words in ("aws_bedrock", "mixed", "templates", "Less is better", "tools", "relive keys create"):
        assert words in said, words
    routes = make_routes(settings)
    for name, model in (
        ("tensorzero::function_name::write", "haiku-writer"),
        ("tensorzero::model_name::haiku-writer", "haiku-writer"),
        ("tensorzero::model_name::groq::llama-3.3-70b", "groq::llama-3.3-70b"),
    ):
        assert routes.candidates(name)[0].name == model


def test_a_model_that_takes_any_name_is_asked_for_the_name_that_is_meant() -> None:
    routes = make_routes(
        load(None, models=[{"name": "any", "upstream": "http://127.0.0.1:1/v1"}], tiers={"t": ["any"]})
    )
    assert routes.candidates("tensorzero::model_name::gpt-5")[0].model == "gpt-5"
    assert routes.candidates("tensorzero::function_name::t")[0].model == "any"
    assert routes.candidates("other::name")[0].model == "other::name"


def test_the_commands_write_a_file_once_and_say_what_comes_next(tmp_path: Path) -> None:
    source = written(tmp_path, "tensorzero.toml", TENSORZERO)
    target = tmp_path / "relive.toml"
    printed = run("import", "tensorzero", source, "--to", target)
    assert "3 models" in printed
    assert "relive serve --check" in printed
    assert tomllib.loads(target.read_text())["models"][0]["name"] == "haiku-writer"
    refused = CliRunner().invoke(app, ["import", "tensorzero", str(source), "--to", str(target)])
    assert refused.exit_code == 2
    run("import", "litellm-config", written(tmp_path, "config.yaml", LITELLM), "--to", target, "--force")
    assert tomllib.loads(target.read_text())["fallbacks"] == ["local"]
    assert "[[models]]" in run("import", "tensorzero", source, "--to", "-")


# ---- Rows

CHAT, OTHER, EPISODE = (f"0196c682-72e0-7c83-a92b-9d1a3c7630{n}" for n in ("01", "02", "ff"))


def dump(*tables: tuple[str, dict[str, Any]]) -> str:
    """Rows as pg_dump writes them: text format of COPY, one table after the other."""
    lines = ["--", "-- PostgreSQL database dump", "--", "SET client_encoding = 'UTF8';", ""]
    for table, row in tables:
        lines.append(f"COPY tensorzero.{table} ({', '.join(row)}) FROM stdin;")
        lines.append("\t".join(_field(value) for value in row.values()))
        lines += ["\\.", ""]
    return "\n".join(lines)


def _field(value: Any) -> str:
    if value is None:
        return "\\N"
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


META = {"function_name": "write", "variant_name": "large", "episode_id": EPISODE, "tags": {"user": "7"}}
INPUT = {
    "system": "Be brief.\n",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Weather\tin York\\Leeds?"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_call", "id": "c1", "name": "weather", "arguments": '{"a": 1.10}'}],
        },
        {"role": "user", "content": [{"type": "tool_result", "id": "c1", "name": "weather", "result": "rain"}]},
    ],
}
TABLES: list[tuple[str, dict[str, Any]]] = [
    ("api_keys", {"id": "1"}),
    ("chat_inferences_2026_03", {"id": CHAT, **META, "processing_time_ms": 250, "ttft_ms": 20, "error": None}),
    (
        "chat_inference_data_2026_03_04",
        {
            "id": CHAT,
            "input": INPUT,
            "output": [{"type": "text", "text": "Rain."}],
            "dynamic_tools": [{"name": "weather", "parameters": {"type": "object"}}],
        },
    ),
    (
        "model_inferences_default",
        {
            "id": OTHER,
            "inference_id": CHAT,
            "model_name": "haiku-writer",
            "input_tokens": 30,
            "output_tokens": 5,
            "cost": "0.000123456",
            "finish_reason": "stop",
        },
    ),
    (
        "json_inferences",  # the older layout: the payload in the same table
        {"id": OTHER, **META, "tags": {}, "input": {"messages": []}, "output": {"raw": '{"x": 1}', "parsed": {"x": 1}}},
    ),
    ("boolean_metric_feedback", {"id": CHAT, "target_id": CHAT, "metric_name": "solved", "value": "t"}),
    ("float_metric_feedback", {"id": CHAT, "target_id": EPISODE, "metric_name": "stars", "value": "0.25"}),
    ("comment_feedback", {"id": CHAT, "target_id": CHAT, "target_type": "inference", "value": "fine\nindeed"}),
    ("demonstration_feedback", {"id": OTHER, "inference_id": OTHER, "value": {"raw": '{"x": 2}', "parsed": None}}),
]


def test_the_rows_of_a_dump_become_experiences_with_their_feedback(tmp_path: Path) -> None:
    source = written(tmp_path, "tensorzero.sql", dump(*TABLES))
    store = tmp_path / "agent.db"
    report = json.loads(run("import", "tensorzero", source, store, "--json"))
    assert (report["imported"], report["failed"], report["ignored"]) == (2, 0, {"table api_keys": 1})
    with SqliteStorage(store, readonly=True) as opened:
        first, second = (stored.transition for stored in opened.query())
        assert [message["role"] for message in first.state["messages"]] == ["system", "user", "assistant", "tool"]
        assert first.state["messages"][1]["content"] == "Weather\tin York\\Leeds?"
        call = first.state["messages"][2]["tool_calls"][0]
        assert (call["id"], call["function"]["arguments"]) == ("c1", '{"a": 1.10}')
        assert first.state["tools"][0]["function"]["name"] == "weather"
        assert first.action == {"role": "assistant", "content": "Rain."}
        assert (first.agent, first.policy, first.episode_id, first.step) == ("write", "haiku-writer", EPISODE, 0)
        assert first.tags == ("variant=large", "user=7")
        assert first.usage == Usage(input_tokens=30, output_tokens=5)
        assert (first.cost, first.latency_ms, first.created_at.year) == (123_456, 250.0, 2025)
        assert (second.action["content"], second.step, second.usage, second.cost) == ('{"x": 1}', 1, None, None)
        feedback = {f.key: f for f in opened.feedback_of(1)}
        assert (feedback["solved"].reward, feedback["stars"].reward) == (1.0, 0.25)
        assert feedback["comment"].comment == "fine\nindeed"
        [shown] = [f for f in opened.feedback_of(2) if f.key == "demonstration"]
        assert shown.demonstration == {"role": "assistant", "content": '{"x": 2}'}
    again = json.loads(run("import", "tensorzero", source, store, "--json"))
    assert (again["imported"], again["known"]) == (0, 2)


def test_rows_that_cannot_be_read_are_named_and_the_rest_is_taken(tmp_path: Path) -> None:
    bad = dict(TABLES[1][1], id="no-uuid")
    short = dump(TABLES[4]).replace(f"\t{EPISODE}", "")
    text = dump(TABLES[1], TABLES[2], ("chat_inferences", bad)) + short
    result = CliRunner().invoke(
        app, ["import", "tensorzero", str(written(tmp_path, "d.sql", text)), str(tmp_path / "a.db"), "--json"]
    )
    assert result.exit_code == 1
    report = json.loads(result.stdout.splitlines()[0])
    assert (report["imported"], report["failed"]) == (1, 2)
    assert "no-uuid" in str(report["problems"])
    assert "columns" in str(report["problems"])


def test_a_file_without_rows_says_how_to_make_one(tmp_path: Path) -> None:
    source = written(tmp_path, "d.sql", "INSERT INTO tensorzero.chat_inferences VALUES (1);\n")
    result = CliRunner().invoke(app, ["import", "tensorzero", str(source), str(tmp_path / "a.db")])
    assert result.exit_code == 1
    assert "pg_dump --data-only" in result.output
