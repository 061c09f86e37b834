"""TensorZero's `tensorzero.toml` as settings: models with their providers, functions as tiers, metrics.

A model's providers become models of their own that take over from one another in the order of its `routing`. A function
becomes a tier of its variants' models, the heaviest variant first: what chose among variants by chance chooses by order
here. Prompts, schemas, tools and experiments belong to the application now, and are left out.
"""

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

from relive.server.migrate.draft import Draft, MigrationError
from relive.server.migrate.providers import PROVIDERS

_COUNTED = {
    "prompt_tokens": "input",
    "input_tokens": "input",
    "completion_tokens": "output",
    "output_tokens": "output",
    "cached_tokens": "cached",
    "cache_read_input_tokens": "cached",
    "cache_creation_input_tokens": "cache_write",
}
_PROVIDER_FIELDS = frozenset({"type", "model_name", "api_base", "api_key_location", "cost", "api_type"})
_LEFT_OUT = ("tools", "evaluations", "evaluators", "optimizers", "object_storage", "rate_limiting", "postgres")


def from_tensorzero(path: Path) -> Draft:
    """The settings of a file.

    Raises:
        MigrationError: it cannot be read, is no TOML, or holds no model that can be called from here.
    """
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MigrationError(f"{path} is no TOML: {error}.") from error
    draft = Draft()
    for kind in ("models", "embedding_models"):
        for name, table in _tables(config, kind).items():
            _model(draft, name, table)
    for name, table in _tables(config, "functions").items():
        _function(draft, name, table)
    for name, table in _tables(config, "metrics").items():
        _metric(draft, name, table)
    _gateway(draft, config)
    others = [name for name in _LEFT_OUT if name in config]
    if others:
        draft.note(f"These tables are left out: {', '.join(others)}.")
    draft.finish(str(path))
    return draft


def _model(draft: Draft, name: str, table: dict[str, Any]) -> None:
    providers = _tables(table, "providers")
    routing = [str(one) for one in table.get("routing") or providers]
    made: list[str] = []
    for number, provider in enumerate(routing):
        if provider not in providers:
            draft.note(f"The model {name!r} names the provider {provider!r}, which is not there.")
            continue
        own = name if not made else f"{name} via {provider}"
        if _provider(
            draft, own, providers[provider], _timeout(table), f"{name!r} at {provider!r} (place {number + 1})"
        ):
            made.append(own)
    if made:
        first = next(model for model in draft.models if model["name"] == made[0])
        first["fallbacks"] = made[1:]


def _provider(draft: Draft, name: str, table: dict[str, Any], timeout: float | None, whose: str) -> bool:
    """Adds one provider of a model; whether it could be carried over."""
    kind = str(table.get("type"))
    known = PROVIDERS.get(kind)
    base = table.get("api_base") or (known.url if known is not None else None)
    if known is None or not isinstance(base, str):
        draft.note(f"The model {whose} is of type {kind!r}, whose API the gateway does not speak; it is left out.")
        return False
    made: dict[str, Any] = {"name": name, "upstream": base.rstrip("/"), "model": str(table.get("model_name") or name)}
    if known.api != "openai":
        made["api"] = known.api
    where = table.get("api_key_location", f"env::{known.variable}" if known.variable else "none")
    variable = where.removeprefix("env::") if isinstance(where, str) and where.startswith("env::") else None
    if variable is not None:
        made["api_key_env"] = variable
    elif isinstance(where, str) and where.startswith("path::"):
        made["api_key_file"] = where.removeprefix("path::")
    elif where != "none":
        draft.note(f"The key of {whose} comes from {where!r}: clients that show their own key have it passed on.")
    price = _price(table.get("cost"))
    if price is not None:
        made["price"] = price
    elif table.get("cost"):
        draft.note(f"The cost of {whose} is not by tokens of prompt and answer; it is left out.")
    if timeout is not None:
        made["timeout"] = timeout
    others = sorted(table.keys() - _PROVIDER_FIELDS)
    if others:
        draft.note(f"Of the model {whose} these are left out: {', '.join(others)}.")
    draft.models.append(made)
    return True


def _price(costs: Any) -> dict[str, Any] | None:
    """USD for a million tokens, from an amount for each count in an answer's usage; some amounts are discounts."""
    amounts: dict[str, Decimal] = {}
    for cost in costs if isinstance(costs, list) else ():
        pointer = str(cost.get("pointer", "")) if isinstance(cost, dict) else ""
        ours = _COUNTED.get(pointer.rsplit("/", 1)[-1])
        amount = cost.get("cost_per_million") if isinstance(cost, dict) else None
        if ours is None or isinstance(amount, bool) or not isinstance(amount, int | Decimal):
            return None
        amounts[ours] = Decimal(amount)
    if "input" not in amounts or "output" not in amounts:
        return None
    for extra in ("cached", "cache_write"):
        if extra in amounts:
            amounts[extra] += amounts["input"] if amounts[extra] < 0 or _counted_within(costs, extra) else 0
    return dict(amounts) if all(amount >= 0 for amount in amounts.values()) else None


def _counted_within(costs: Any, ours: str) -> bool:
    """Whether a count is a part of the prompt's, so that its amount is added to the prompt's own."""
    return any(
        isinstance(cost, dict)
        and _COUNTED.get(str(cost.get("pointer", "")).rsplit("/", 1)[-1]) == ours
        and "_details/" in str(cost.get("pointer", ""))
        for cost in costs
    )


def _function(draft: Draft, name: str, table: dict[str, Any]) -> None:
    """A function as a tier of the models that its variants name."""
    variants = list(_tables(table, "variants").items())
    variants.sort(key=lambda item: -float(item[1].get("weight") or 0))
    members: list[str] = []
    for variant, settings in variants:
        model = settings.get("model")
        if not isinstance(model, str):
            draft.note(f"The variant {variant!r} of the function {name!r} names no model; it is left out.")
            continue
        if not draft.has_model(model):
            _shorthand(draft, model)
        members.append(model)
    members = [member for member in dict.fromkeys(members) if draft.has_model(member)]
    if not members:
        draft.note(f"The function {name!r} has no variant whose model could be carried over.")
    elif draft.has_model(name):
        draft.note(f"The function {name!r} is called as a model is; that name stands for the model.")
    else:
        draft.tier(name, members)
        draft.note(
            f"Of the function {name!r} only the models are carried over: templates, schemas, tools and parameters are "
            "the application's now."
        )


def _shorthand(draft: Draft, model: str) -> None:
    """A model that is named as ``provider::model``."""
    kind, colons, rest = model.partition("::")
    if colons and kind in PROVIDERS and PROVIDERS[kind].url is not None:
        table = {"type": kind, "model_name": rest.removeprefix("responses::")}
        _provider(draft, model, table, None, repr(model))


def _metric(draft: Draft, name: str, table: dict[str, Any]) -> None:
    kind, level = table.get("type"), table.get("level", "inference")
    if kind not in ("boolean", "float"):
        draft.note(f"The metric {name!r} is of type {kind!r}; it is left out.")
        return
    draft.settings.setdefault("metrics", []).append(
        {
            "name": name,
            "type": "boolean" if kind == "boolean" else "number",
            "level": "episode" if level == "episode" else "experience",
        }
    )
    if table.get("optimize") == "min":
        draft.note(
            f"Less is better for the metric {name!r}; give its key a negative weight, or its negative as reward."
        )


def _gateway(draft: Draft, config: dict[str, Any]) -> None:
    gateway = config.get("gateway")
    bind = gateway.get("bind_address") if isinstance(gateway, dict) else None
    if isinstance(bind, str) and ":" in bind:
        host, _, port = bind.rpartition(":")
        if port.isdecimal():
            draft.settings["server"] = {"host": host.strip("[]"), "port": int(port)}
            if host.strip("[]") not in ("127.0.0.1", "::1", "localhost"):
                draft.note("It listens beyond this machine, so it asks for a key: relive keys create NAME")


def _timeout(table: dict[str, Any]) -> float | None:
    """A model's time limit in seconds."""
    limits = _tables(table, "timeouts")
    milliseconds = limits.get("non_streaming", {}).get("total_ms")
    return milliseconds / 1000 if isinstance(milliseconds, int) and 0 < milliseconds <= 86_400_000 else None


def _tables(config: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    value = config.get(name)
    return {key: table for key, table in value.items() if isinstance(table, dict)} if isinstance(value, dict) else {}
