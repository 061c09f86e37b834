"""What a demo is run with, and how an interrupted one finds that again in its own file."""

import os
import shlex
from pathlib import Path

import msgspec

from relive.errors import ReliveError
from relive.llm.endpoint import Endpoint
from relive.memory import Memory

MESSAGES = 300
"""Messages in the stream unless told otherwise."""

FEWEST_MESSAGES = 3
MOST_MESSAGES = 1972
"""All training messages of the 16 intents."""

DEMO = "demo"
"""Tag of every record in a demo's file, a call that failed included; the tags beside it hold the settings."""


class DemoError(ReliveError):
    """The demo cannot run as asked; the message says why and what to do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a demo is run with.

    Attributes:
        seed: Seed of the order of messages and of all draws.
        messages: How many messages; the last third is where the arms are compared.
        base_url: An OpenAI-compatible endpoint; ``None``: the small model on this machine.
        model: The model's name there.
        api_key_env: Name of the environment variable that holds the endpoint's key; ``None``: no key.
        file: The memory's file; ``None``: the next free ``relive-demo.db`` in the current folder.
        resume: File of an interrupted demo to go on with; seed and number of messages are read from it, and the model
            must be the one that it was begun with.
        shuffled_rewards: Rewards that mean nothing: a control in which recall must not help.
    """

    seed: int = 0
    messages: int = MESSAGES
    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    file: Path | None = None
    resume: Path | None = None
    shuffled_rewards: bool = False

    @property
    def last_third(self) -> int:
        """Number of the first message of the last third."""
        return self.messages - self.messages // 3

    @property
    def tags(self) -> tuple[str, ...]:
        """Labels of every record, from which `read_settings` makes the settings again; no secret is among them."""
        tags = [DEMO, f"seed={self.seed}", f"messages={self.messages}"]
        if self.base_url is not None:
            tags += [f"model={self.model}", f"base_url={Endpoint.of(self.base_url).shown}"]
        if self.api_key_env is not None:
            tags.append(f"api_key_env={self.api_key_env}")
        return (*tags, "shuffled") if self.shuffled_rewards else tuple(tags)

    def resume_command(self, file: Path) -> str:
        """The command that goes on with a demo of these settings."""
        options = {
            "resume": str(file),
            "base-url": None if self.base_url is None else Endpoint.of(self.base_url).shown,
            "model": self.model,
            "api-key-env": self.api_key_env,
        }
        given = [f"--{name} {shlex.quote(value)}" for name, value in options.items() if value is not None]
        return " ".join(["relive demo", *given])

    def api_key(self) -> str | None:
        """The endpoint's key.

        Raises:
            DemoError: the environment variable is not set.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env)
        if not key:
            raise DemoError(
                f"The environment variable {self.api_key_env} is not set; set it to the endpoint's API key."
            )
        return key


def check(settings: Settings) -> None:
    """Looks for what cannot work before anything is started.

    Raises:
        DemoError: a setting is out of range, missing, or does not go with another.
    """
    if not FEWEST_MESSAGES <= settings.messages <= MOST_MESSAGES:
        raise DemoError(f"messages is {settings.messages}; give a number from {FEWEST_MESSAGES} to {MOST_MESSAGES}.")
    if settings.seed < 0:
        raise DemoError(f"seed is {settings.seed}; give 0 or more.")
    if (settings.base_url is None) != (settings.model is None):
        raise DemoError("Give --base-url and --model together, or neither for the small model on this machine.")
    if settings.file is not None and settings.resume is not None:
        raise DemoError("Give --file for a new demo or --resume for an interrupted one, not both.")
    if settings.file is not None and settings.file.exists():
        raise DemoError(f"{settings.file} exists already; go on with it by --resume, or give another file.")
    if settings.resume is not None and not settings.resume.is_file():
        raise DemoError(f"There is no file {settings.resume} to go on with; start a new demo without --resume.")
    key = settings.api_key()
    if settings.base_url is not None:
        try:
            Endpoint.of(settings.base_url, key)
        except ReliveError as error:
            raise DemoError(str(error)) from None


def free_file(folder: Path) -> Path:
    """The first of ``relive-demo.db``, ``relive-demo-2.db`` ... that does not exist."""
    path, number = folder / "relive-demo.db", 1
    while path.exists():
        number += 1
        path = folder / f"relive-demo-{number}.db"
    return path


def read_settings(memory: Memory, file: Path) -> Settings | None:
    """The settings of the demo that a memory holds; ``None``: it holds nothing yet.

    Args:
        memory: The demo's memory.
        file: Its file, for messages.

    Raises:
        DemoError: the file's records are not those of a demo.
    """
    if not len(memory):
        return None
    stored = memory.query(tag=DEMO, limit=1)
    tags = stored[0].transition.tags if stored else ()
    named = dict(tag.split("=", 1) for tag in tags if "=" in tag)
    if not {"seed", "messages"} <= named.keys():
        raise DemoError(f"{file} holds no demo; start a new one without --resume.")
    return Settings(
        seed=int(named["seed"]),
        messages=int(named["messages"]),
        base_url=named.get("base_url"),
        model=named.get("model"),
        api_key_env=named.get("api_key_env"),
        shuffled_rewards="shuffled" in tags,
    )


def resumed(settings: Settings, memory: Memory, file: Path) -> Settings:
    """The settings with which a demo goes on: the file's own, with the endpoint's address and key as given now.

    Raises:
        DemoError: the file holds no demo, or one with another model: its answers could not be told from the other's.
    """
    begun = read_settings(memory, file)
    if begun is None:
        return settings
    if begun.model != settings.model:
        whom = begun.model or "the small model of this machine"
        raise DemoError(f"{file} was begun with {whom}. Go on with: {begun.resume_command(file)}")
    return msgspec.structs.replace(
        settings, seed=begun.seed, messages=begun.messages, shuffled_rewards=begun.shuffled_rewards
    )
