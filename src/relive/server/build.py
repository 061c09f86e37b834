"""From settings to the parts of a running server, each checked before anything listens."""

import ipaddress
import os
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from relive import __version__
from relive.gateway.access import Access
from relive.gateway.budget import EVERYTHING, Budget, Budgets
from relive.gateway.cache import AnswerCache
from relive.gateway.journal import Journal
from relive.gateway.keys import Keys, check_private
from relive.gateway.ledger import Ledger
from relive.gateway.proxy import Gateway, Limits
from relive.gateway.recorder import Recorder
from relive.gateway.routes import Model, Routes
from relive.gateway.snapshots import Snapshots
from relive.gateway.spool import Spool
from relive.llm.endpoint import Endpoint
from relive.llm.pricing import NANO_PER_USD, Price, PriceTable
from relive.llm.retry import RetryPolicy
from relive.llm.upstream import Upstream
from relive.memory import Memory
from relive.playbook.book import Playbook
from relive.playbook.hook import PromptHook
from relive.playbook.injection import Injection
from relive.playbook.trust import Trust
from relive.rewards import RewardFunction, from_settings
from relive.server.settings import Settings, SettingsError
from relive.storage.connection import check_path
from relive.storage.errors import IndexOwnedError
from relive.storage.redaction import Redactor
from relive.storage.sqlite import SqliteStorage

_PATIENCE = 3.0  # seconds for the vector of a prompt


class Parts(NamedTuple):
    """What a server is made of.

    Attributes:
        settings: What it was made from.
        memory: The store with its sampling index, or only the store if another process owns the index.
        gateway: The gateway.
        keys: The gateway's keys.
        ledger: Its own database.
        lessons: Chooses what prompts are given; ``None``: they are given nothing.
        keys_required: Whether callers must show a key.
        notes: What its owner should know, in sentences.
    """

    settings: Settings
    memory: Memory
    gateway: Gateway
    keys: Keys
    ledger: Ledger
    lessons: Injection | None
    keys_required: bool
    notes: list[str]

    def close(self) -> None:
        """Lets go of the files; the gateway itself is closed in its event loop before."""
        self.memory.close()
        self.ledger.close()


def beside(store: Path) -> Path:
    """The folder where the gateway keeps what is its own, beside the store."""
    return store.with_name(f"{store.name}.gateway")


def open_keys(store: Path) -> tuple[Ledger, Keys]:
    """The keys of the gateways beside a store.

    Raises:
        ReliveError: no store can be kept there, or what the gateway keeps beside it cannot be used.
    """
    check_path(store, readonly=False)
    ledger = Ledger(beside(store) / "ledger.db")
    return ledger, Keys(ledger, beside(store) / "secret")


def build(settings: Settings, *, url: str | None = None) -> Parts:
    """Opens and makes all parts.

    Args:
        settings: The settings.
        url: Where the server is reached, for others who want to draw from its store; ``None``: it is not served.

    Raises:
        ReliveError: something cannot be used; the message says what and what to do.
    """
    store = settings.store.path
    routes = make_routes(settings)
    rewards = make_rewards(settings)
    redact = Redactor(
        secrets=settings.capture.secrets,
        personal=settings.capture.personal,
        patterns=settings.capture.patterns,
        content=settings.capture.content,
    )
    ledger, keys = open_keys(store)
    try:
        required = keys_required(settings)
        if required and not keys.any_works():
            raise SettingsError(
                f"Listening on {settings.server.host} lets others in, and there is no key yet. Run: "
                f"relive keys create laptop --store {store}   (or listen on 127.0.0.1 only)"
            )
        notes = list(routes.warnings)
        memory = _open_memory(settings, redact, url, notes)
    except BaseException:
        ledger.close()
        raise
    lessons = make_lessons(settings, memory)
    spool = settings.store.spool or beside(store) / "spool"
    gateway = Gateway(
        routes=routes,
        access=Access(keys, required=required),
        recorder=Recorder(memory.storage, Spool(spool), redact=redact),
        journal=Journal(beside(store)),
        prices=PriceTable(),
        budgets=make_budgets(settings, ledger, memory.storage),
        cache=make_cache(settings),
        policy=RetryPolicy(**settings.retries.model_dump()),
        limits=Limits(
            **settings.limits.model_dump(), drain=settings.capture.drain, with_tokens=settings.capture.token_ids
        ),
        rewards=rewards,
        prepare=None if lessons is None else PromptHook(lessons, mode=settings.lessons.inject),
        last_step=lambda episode: _last_step(memory.storage, episode),
        snapshot=Snapshots(ledger).keep({"relive": __version__, "settings": public(settings), "prices": _price_data()}),
        agent=settings.capture.agent,
    )
    return Parts(settings, memory, gateway, keys, ledger, lessons, required, notes)


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def keys_required(settings: Settings) -> bool:
    """Whether callers must show a key."""
    return settings.server.keys == "required" or not is_loopback(settings.server.host)


def make_routes(settings: Settings) -> Routes:
    """The models and tiers.

    Raises:
        ReliveError: one of them cannot be used.
    """
    models = []
    for table in settings.models:
        price = table.price
        models.append(
            Model(
                name=table.name,
                endpoint=Endpoint.of(table.upstream, provider_key(table), table.headers),
                model=table.model,
                api=table.api,
                price=None if price is None else Price(**price.model_dump()),
                window=table.window,
                rpm=table.rpm,
                tpm=table.tpm,
                timeout=table.timeout,
                fallbacks=tuple(table.fallbacks),
                asks_usage=table.asks_usage,
            )
        )
    return Routes(models, tiers=settings.tiers, fallbacks=settings.fallbacks, open_default=settings.open_default)


def provider_key(table: object) -> str | None:
    """The provider's key that a model's table names; ``None``: it names none.

    Raises:
        SettingsError: the variable is not set, or the file cannot be read.
        AccessKeyError: others can read the file.
    """
    variable, file = getattr(table, "api_key_env", None), getattr(table, "api_key_file", None)
    if variable is not None:
        key = os.environ.get(variable, "").strip()
        if not key:
            raise SettingsError(f"The environment variable {variable} holds no key. Set it, then start again.")
        return key
    if file is None:
        return None
    try:
        check_private(file)
        return str(file.read_text(encoding="utf-8")).strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The key file {file} cannot be read: {error}.") from error


def make_rewards(settings: Settings) -> dict[str, RewardFunction]:
    """The rewards given to each recorded call, by name.

    Raises:
        RewardError: one of them cannot be made.
    """
    rewards: dict[str, RewardFunction] = {}
    for table in settings.rewards:
        rest = dict(table)
        name = str(rest.pop("name", rest.get("kind")))
        if name in rewards:
            raise SettingsError(f"Two rewards are called {name!r}; give each its own name.")
        rewards[name] = from_settings(rest)
    return rewards


def make_lessons(settings: Settings, memory: Memory) -> Injection | None:
    """What prompts are given; ``None``: nothing."""
    table = settings.lessons
    if table.inject == "off":
        return None
    model = next((one for one in settings.models if one.name == table.embeddings), None)
    embed = None
    if model is not None:
        embed = Upstream(
            model.upstream,
            model.model or model.name,
            provider_key(model),
            timeout=_PATIENCE,  # an agent waits meanwhile; without vectors lessons are found by words
            max_attempts=1,
            headers=model.headers,
        ).embed
    return Injection(
        Playbook(memory, trust=Trust(autonomy=table.autonomy), embed=embed),
        lessons=table.lessons,
        successes=table.successes,
        token_budget=table.token_budget,
        max_distance=table.max_distance,
        held_out=table.held_out,
    )


def make_cache(settings: Settings) -> AnswerCache | None:
    """The answers that are given again; ``None``: none are."""
    table = settings.cache
    if table.mode == "off":
        return None
    return AnswerCache(table.mode, max_age=table.max_age, max_bytes=table.max_bytes, clock=time.monotonic)


def make_budgets(settings: Settings, ledger: Ledger, storage: SqliteStorage) -> Budgets | None:
    """The budgets, starting from what the store says was spent already; ``None``: there are none."""
    limits = [Budget(scope=table.scope, day=_nano(table.day), month=_nano(table.month)) for table in settings.budgets]
    zone = ZoneInfo(settings.time_zone)
    budgets = Budgets(ledger, limits, zone=zone, now=lambda: datetime.now(UTC))
    if not budgets:
        return None
    today = datetime.now(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    for limit in limits:
        kind, _, name = limit.scope.partition(":")
        if kind == "key":
            continue  # the store does not know keys
        for span, since in (("day", today), ("month", today.replace(day=1))):
            agent = None if limit.scope == EVERYTHING else name
            spent = sum(row.cost or 0 for row in storage.usage(since=since.astimezone(UTC), agent=agent))
            budgets.start_from(limit.scope, "day" if span == "day" else "month", spent)
    return budgets


def public(settings: Settings) -> dict[str, object]:
    """The settings as they may be kept and shown: header values, which may be secret, are left out."""
    tables = settings.model_dump(mode="json")
    for table in tables["models"]:
        table["headers"] = sorted(table["headers"])
        table["upstream"] = Endpoint.of(table["upstream"]).shown
    return tables


def _open_memory(settings: Settings, redact: Redactor, url: str | None, notes: list[str]) -> Memory:
    store = settings.store
    storage = SqliteStorage(store.path, durability=store.durability, redact=redact)
    try:
        try:
            storage.claim(url=url)
        except IndexOwnedError as error:
            notes.append(f"{error} Calls are recorded here all the same.")
        days = store.max_age_days
        return Memory(
            storage,
            capacity=store.capacity,
            max_bytes=store.max_bytes,
            max_age=None if days is None else days * 86_400,
        )
    except BaseException:
        storage.close()
        raise


def _last_step(storage: SqliteStorage, episode_id: str) -> int | None:
    rows = storage.query(episode_id=episode_id, newest_first=True, limit=1)
    return rows[0].transition.step if rows else None


def _nano(dollars: Decimal | None) -> int | None:
    return None if dollars is None else int(dollars * NANO_PER_USD)


def _price_data() -> str:
    """The version of the price data: that of the package it comes in."""
    from importlib.metadata import version

    return f"genai-prices {version('genai-prices')}"
