"""LiteLLM's `config.yaml` as settings: `model_list`, `fallbacks`, `rpm`, `tpm`, prices, time limits and retries.

Several deployments under one name are balanced by LiteLLM; here they become a tier, tried in the order of the file. A
key that stands in the file is never copied: the settings name the environment variable that it has to be put into.
"""

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from relive.server.migrate.draft import Draft, MigrationError
from relive.server.migrate.providers import PROVIDERS, Provider

_MILLION = Decimal(10**6)
_CARRIED = frozenset(
    {
        "model",
        "api_base",
        "base_url",
        "api_key",
        "rpm",
        "tpm",
        "timeout",
        "input_cost_per_token",
        "output_cost_per_token",
    }
)
_SETTINGS = frozenset(
    {"fallbacks", "context_window_fallbacks", "default_fallbacks", "num_retries", "request_timeout", "timeout"}
)
_BASE = frozenset({"model_list", "litellm_settings", "router_settings", "general_settings", "environment_variables"})


def from_litellm(path: Path) -> Draft:
    """The settings of a file.

    Raises:
        MigrationError: it cannot be read, is no YAML, or holds no model that can be called from here.
    """
    config = _read(path)
    draft = Draft()
    settings = {**_mapping(config, "litellm_settings"), **_mapping(config, "router_settings")}
    names: dict[str, list[str]] = {}
    entries = [entry for entry in config.get("model_list") or [] if isinstance(entry, dict)]
    for entry in sorted(entries, key=lambda entry: entry.get("model_name") != "*"):  # what takes any name comes first
        name = str(entry.get("model_name") or "")
        made = _model(draft, name, entry, settings, len(names.get(name, ())))
        if made is not None:
            names.setdefault(name, []).append(made)
    _deployments(draft, names)
    _fallbacks(draft, settings, names)
    for alias, target in _mapping(settings, "model_group_alias").items():
        target = target.get("model") if isinstance(target, dict) else target
        draft.tier(str(alias), names.get(str(target), [str(target)]))
    retries = settings.get("num_retries")
    if isinstance(retries, int) and retries >= 0:
        draft.settings["retries"] = {"max_attempts": min(retries + 1, 20)}
    for sentence in _left_out(config, settings):
        draft.note(sentence)
    draft.finish(str(path))
    return draft


def _read(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise MigrationError("LiteLLM's file is YAML. Run: pip install 'relive[litellm]'") from error
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        words = " ".join(str(getattr(error, "problem", None) or type(error).__name__).split())
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise MigrationError(f"{path}{where} is no YAML: {words}.") from error
    if not isinstance(value, dict) or not isinstance(value.get("model_list"), list):
        raise MigrationError(f"{path} has no model_list, so it is no configuration of LiteLLM's proxy.")
    return value


def _model(draft: Draft, name: str, entry: dict[str, Any], settings: dict[str, Any], earlier: int) -> str | None:
    """Adds one deployment; gives the name that it got, ``None`` if it could not be carried over."""
    given = entry.get("litellm_params")
    params: dict[str, Any] = given if isinstance(given, dict) else {}
    info = _mapping(entry, "model_info")
    target = str(params.get("model") or "")
    prefix, slash, rest = target.partition("/")
    if not slash or prefix not in PROVIDERS:
        known = "openai" if not slash or params.get("api_base") else None
        if known is None or (slash and prefix in ("azure", "azure_ai", "bedrock", "vertex_ai", "sagemaker")):
            draft.note(f"The model {name!r} goes to {target!r}, whose API the gateway does not speak; it is left out.")
            return None
        prefix, rest = known, target
    provider = PROVIDERS[prefix]
    base = params.get("api_base") or params.get("base_url") or provider.url
    if not isinstance(base, str):
        draft.note(f"The model {name!r} has no api_base, and {prefix} has no address of its own; it is left out.")
        return None
    if base.startswith("os.environ/"):
        draft.note(f"The address of {name!r} is in the variable {base[11:]}; write it into upstream yourself.")
        return None
    if "*" in name and name != "*":
        draft.note(f"The model {name!r} stands for many names; the gateway knows only names, and * for any. Left out.")
        return None
    made: dict[str, Any] = {"name": "any" if name == "*" else name if not earlier else f"{name} #{earlier + 1}"}
    made["upstream"] = base.rstrip("/")
    if name != "*":
        made["model"] = rest
    if provider.api != "openai":
        made["api"] = provider.api
    _key(draft, made, params.get("api_key"), prefix, provider, own_address=bool(params.get("api_base")))
    _price(made, {**info, **params})
    window = info.get("max_input_tokens")
    if isinstance(window, int) and window > 0:
        made["window"] = window
    for limit in ("rpm", "tpm"):
        value = params.get(limit, entry.get(limit))
        if isinstance(value, int) and value > 0:
            made[limit] = value
    seconds = params.get("timeout", settings.get("timeout", settings.get("request_timeout")))
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= 86_400:
        made["timeout"] = float(seconds)
    others = sorted(str(other) for other in params.keys() - _CARRIED)
    if others:
        draft.note(f"Of the model {name!r} these are left out: {', '.join(others)}.")
    draft.models.append(made)
    return str(made["name"])


def _key(draft: Draft, made: dict[str, Any], given: Any, prefix: str, provider: Provider, *, own_address: bool) -> None:
    """Says where the provider's key is; a key itself is never copied."""
    if isinstance(given, str) and given.startswith("os.environ/"):
        made["api_key_env"] = given.removeprefix("os.environ/")
        return
    variable = provider.variable or f"{prefix.upper()}_API_KEY"
    if isinstance(given, str) and given:
        made["api_key_env"] = variable
        draft.note(f"A key stands in the file for {made['name']!r}; it was not copied. Put it into {variable}.")
    elif provider.variable is not None and not own_address:
        made["api_key_env"] = provider.variable


def _price(made: dict[str, Any], facts: dict[str, Any]) -> None:
    """USD for a token become USD for a million, digit by digit."""
    price: dict[str, Any] = {}
    names = {
        "input": "input_cost_per_token",
        "output": "output_cost_per_token",
        "cached": "cache_read_input_token_cost",
        "cache_write": "cache_creation_input_token_cost",
    }
    for ours, theirs in names.items():
        try:
            amount = Decimal(str(facts[theirs])) * _MILLION
        except (KeyError, InvalidOperation):
            continue
        if amount.is_finite() and amount >= 0:
            price[ours] = amount.normalize()
    if "input" in price and "output" in price:
        made["price"] = price


def _deployments(draft: Draft, names: dict[str, list[str]]) -> None:
    """Several deployments of one name become a tier of that name, and get names of their own."""
    for name, members in names.items():
        if len(members) < 2 or name == "*":
            continue
        first = f"{name} #1"
        next(model for model in draft.models if model["name"] == name)["name"] = first
        members[0] = first
        draft.tier(name, members)
        draft.note(f"The {len(members)} deployments of {name!r} are tried in this order; they are not balanced.")


def _fallbacks(draft: Draft, settings: dict[str, Any], names: dict[str, list[str]]) -> None:
    for kind in ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks"):
        for table in settings.get(kind) or []:
            for name, others in table.items() if isinstance(table, dict) else ():
                if kind == "content_policy_fallbacks":
                    draft.note("content_policy_fallbacks are left out: a refusal is never tried elsewhere.")
                    continue
                targets = [one for other in others or [] for one in names.get(str(other), [str(other)])]
                if name == "*":
                    draft.settings.setdefault("fallbacks", []).extend(targets)
                    continue
                for member in names.get(str(name), []):
                    model = next(model for model in draft.models if model["name"] == member)
                    kept = [target for target in targets if target != member]
                    model["fallbacks"] = list(dict.fromkeys([*model.get("fallbacks", []), *kept]))
    defaults = settings.get("default_fallbacks") or []
    targets = [one for other in defaults for one in names.get(str(other), [str(other)])]
    if targets:
        draft.settings["fallbacks"] = [*draft.settings.get("fallbacks", []), *targets]


def _left_out(config: dict[str, Any], settings: dict[str, Any]) -> Iterator[str]:
    general = _mapping(config, "general_settings")
    if "master_key" in general:
        yield "master_key is left out; make keys with: relive keys create NAME"
    others = sorted(str(name) for name in general.keys() - {"master_key"})
    others += sorted(str(name) for name in settings.keys() - _SETTINGS - {"model_group_alias", "cache"})
    others += sorted(str(name) for name in config.keys() - _BASE)
    if others:
        yield f"These settings are left out: {', '.join(others)}."
    if settings.get("cache"):
        yield "The cache is left out; the gateway's own is set in [cache], and is off unless it is."
    variables = sorted(map(str, _mapping(config, "environment_variables")))
    if variables:
        yield f"environment_variables are left out; set them before the start: {', '.join(variables)}."


def _mapping(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}
