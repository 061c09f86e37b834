"""The settings of `relive serve`: one TOML file, environment variables over it.

Every setting has a name of its own in the file and in the environment: ``port`` in the table ``[server]`` is
``RELIVE_SERVER__PORT``. Unknown names are refused. Providers' keys never stand in the file: it names the environment
variable or the file that holds them.
"""

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from relive.errors import ReliveError

Dollars = Annotated[Decimal, Field(ge=0)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1)]


class SettingsError(ReliveError):
    """The settings cannot be used; the message names each one that is wrong."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(_Table):
    """Where the server listens."""

    host: str = Field(default="127.0.0.1", description="Address to listen on; beyond this machine only with keys.")
    port: int = Field(default=8400, ge=0, le=65_535, description="Port; 0 takes any free one.")
    keys: Literal["auto", "required"] = Field(
        default="auto", description="Whether callers must show a key; auto: when listening beyond this machine."
    )
    stop_seconds: Seconds = Field(
        default=30.0, description="How long streams may go on once the server is told to stop."
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"


class Store(_Table):
    """Where experiences are kept."""

    path: Path = Field(
        default=Path("relive.db"), description="The store's file; what the gateway itself keeps lies beside it."
    )
    capacity: Count | None = Field(default=None, description="Most experiences kept; the oldest leave.")
    max_bytes: Count | None = Field(default=None, description="Most bytes of payloads kept.")
    max_age_days: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Days after which experiences leave."
    )
    durability: Literal["process", "power"] = "process"
    spool: Path | None = Field(default=None, description="Folder where records wait while the store is locked or full.")


class ModelPrice(_Table):
    """USD for a million tokens."""

    input: Dollars
    output: Dollars
    cached: Dollars | None = None
    cache_write: Dollars | None = None


class ModelTable(_Table):
    """A model that calls may go to."""

    name: Name = Field(description="What clients call it.")
    upstream: str = Field(description="Base address of its API, such as http://127.0.0.1:8080/v1.")
    model: Name | None = Field(default=None, description="Its name there; without one it takes any name.")
    api: Literal["openai", "anthropic"] = "openai"
    api_key_env: str | None = Field(default=None, description="Environment variable that holds the provider's key.")
    api_key_file: Path | None = Field(
        default=None, description="File, readable by its owner alone, that holds the key."
    )
    headers: dict[str, str] = Field(default_factory=dict, description="Sent along with every request.")
    price: ModelPrice | None = Field(default=None, description="Its price; without one that of genai-prices, if known.")
    window: Count | None = Field(default=None, description="Tokens that prompt and answer may have together.")
    rpm: Count | None = Field(default=None, description="Requests a minute.")
    tpm: Count | None = Field(default=None, description="Tokens a minute.")
    timeout: Seconds = 600.0
    fallbacks: list[str] = Field(default_factory=list, description="Models that take over when it fails.")
    asks_usage: bool = Field(default=True, description="Whether its streams may be asked for a chunk with the usage.")

    @model_validator(mode="after")
    def _one_source_of_the_key(self) -> "ModelTable":
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("give api_key_env or api_key_file, not both")
        return self


class Retries(_Table):
    """How often an upstream is tried, and how long is waited between."""

    max_attempts: Annotated[int, Field(ge=1, le=20)] = 3
    min_wait: Annotated[float, Field(ge=0, le=600)] = 0.5
    max_wait: Annotated[float, Field(ge=0, le=600)] = 10.0
    wait_limit: Annotated[float, Field(ge=0, le=3_600)] = 60.0


class LimitsTable(_Table):
    """What clients may ask."""

    request_bytes: Count = 32 << 20
    concurrent: Count = 512
    answer_tokens: Count = Field(
        default=2_048, description="Length of an answer for budgets where the client sets no limit."
    )


class Capture(_Table):
    """What is recorded."""

    agent: Name = Field(default="default", description="Whose calls they are if nobody says so.")
    token_ids: bool = Field(
        default=True, description="Keep token ids and log-probabilities where the server gives them."
    )
    drain: bool = Field(default=False, description="Read an answer to its end when the client has left.")
    content: bool = Field(default=True, description="Keep states and actions, not only what is measured.")
    personal: list[Literal["email", "card", "phone"]] = Field(
        default_factory=list, description="Personal data that is taken out."
    )
    patterns: dict[str, str] = Field(default_factory=dict, description="Own patterns that are taken out, by name.")
    secrets: bool = Field(default=True, description="Take out keys, tokens and passwords.")


class LessonsTable(_Table):
    """Lessons and past successes that are put into prompts."""

    inject: Literal["off", "dry-run", "on"] = Field(
        default="off", description="off; dry-run: only recorded; on. A request may ask for less (x-relive-inject)."
    )
    lessons: Annotated[int, Field(ge=0, le=100)] = Field(default=5, description="At most so many lessons a prompt.")
    successes: Annotated[int, Field(ge=0, le=100)] = Field(
        default=2, description="At most so many of the agent's past successes a prompt."
    )
    token_budget: Annotated[int, Field(ge=0)] = Field(default=600, description="Most tokens put into a prompt.")
    max_distance: Annotated[float, Field(ge=0, le=1)] = Field(default=0.8, description="Nothing farther than this.")
    held_out: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.1, description="Share of episodes that get nothing, for the worth of the whole book."
    )
    autonomy: Annotated[int, Field(ge=1, le=4)] = Field(
        default=2,
        description="1: record only; 2: a person approves each lesson; 3, 4: none need be asked.",
    )
    embeddings: Name | None = Field(
        default=None, description="The model of [[models]] that makes vectors, to find lessons by meaning too."
    )


class CacheTable(_Table):
    """Answers that are given again to exactly the same request; kept in memory alone."""

    mode: Literal["off", "read", "write", "on"] = Field(
        default="off", description="off; read: only give; write: only keep; on: both. A request may ask for less."
    )
    max_age: Annotated[float, Field(gt=0)] = Field(
        default=86_400.0, description="Seconds that an answer is given again."
    )
    max_bytes: Count = Field(default=64 << 20, description="Most bytes of answers kept.")


class BudgetTable(_Table):
    """A budget in USD."""

    scope: str = Field(default="all", description="all, agent:NAME or key:NUMBER.")
    day: Dollars | None = None
    month: Dollars | None = None

    @field_validator("scope")
    @classmethod
    def _known(cls, scope: str) -> str:
        kind, _, name = scope.partition(":")
        if scope != "all" and not (kind in ("agent", "key") and name):
            raise ValueError("must be all, agent:NAME or key:NUMBER")
        return scope


class Metric(_Table):
    """A kind of feedback."""

    name: Name
    type: Literal["boolean", "number"] = "number"
    level: Literal["experience", "episode"] = "experience"
    minimum: float | None = None
    maximum: float | None = None

    @model_validator(mode="after")
    def _bounds(self) -> "Metric":
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError("minimum is above maximum")
        return self


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix="RELIVE_", env_nested_delimiter="__", extra="forbid", frozen=True, toml_file=None
    )

    server: Server = Field(default_factory=Server)
    store: Store = Field(default_factory=Store)
    models: list[ModelTable] = Field(default_factory=list)
    tiers: dict[str, list[str]] = Field(default_factory=dict, description="Lists of models that clients may name.")
    fallbacks: list[str] = Field(default_factory=list, description="Models that take over for any other.")
    open_default: bool = Field(
        default=True, description="Names that are not here go to the first model, if it takes any name."
    )
    retries: Retries = Field(default_factory=Retries)
    limits: LimitsTable = Field(default_factory=LimitsTable)
    capture: Capture = Field(default_factory=Capture)
    cache: CacheTable = Field(default_factory=CacheTable)
    lessons: LessonsTable = Field(default_factory=LessonsTable)
    time_zone: str = Field(default="UTC", description="Where days and months begin.")
    budgets: list[BudgetTable] = Field(default_factory=list)
    rewards: list[dict[str, Any]] = Field(default_factory=list, description="Rewards given to each recorded call.")
    metrics: list[Metric] = Field(default_factory=list, description="Kinds of feedback; with none any is taken.")

    @field_validator("time_zone")
    @classmethod
    def _zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError("is no time zone; give one such as Europe/Berlin") from error
        return name

    @model_validator(mode="after")
    def _embeddings_are_a_model(self) -> "Settings":
        name = self.lessons.embeddings
        if name is not None and name not in {model.name for model in self.models}:
            raise ValueError(f"lessons.embeddings names {name!r}, which is none of the models")
        return self

    @field_validator("metrics")
    @classmethod
    def _different_names(cls, metrics: list[Metric]) -> list[Metric]:
        names = [metric.name for metric in metrics]
        if len(set(names)) != len(names):
            raise ValueError("names one metric twice")
        return metrics

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment stands over the file."""
        return env_settings, init_settings


def load(path: Path | None, **over: Any) -> Settings:
    """The settings of a file, with the environment over it.

    Args:
        path: The TOML file; ``None``: none, only the environment.
        over: Tables that stand over the file's, but under the environment.

    Raises:
        SettingsError: the file cannot be read, or a setting is wrong; each is named.
    """
    given: dict[str, Any] = {}
    if path is not None:
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path} is no TOML file: {error}.") from error
    merged = {**given, **{name: _merged(given.get(name), table) for name, table in over.items()}}
    try:
        return Settings(**merged)
    except ValidationError as error:
        problems = "; ".join(f"{_place(problem['loc'])}: {_words(problem)}" for problem in error.errors())
        raise SettingsError(f"{path or 'The environment'} cannot be used: {problems}.") from error


def json_schema() -> dict[str, Any]:
    """The JSON schema of the file."""
    return Settings.model_json_schema()


def _merged(table: Any, over: Any) -> Any:
    return {**table, **over} if isinstance(table, dict) and isinstance(over, dict) else over


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "settings"


def _words(problem: Any) -> str:
    """What is wrong, without the value: it may be a secret in the wrong place."""
    words = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
    return "there is no such setting" if problem["type"] == "extra_forbidden" else words
