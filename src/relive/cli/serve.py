"""`relive serve` and `relive keys`: the gateway and who may use it."""

import json as json_module
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relive.cli.arguments import DEFAULT_FILE, Json
from relive.cli.output import console, print_json, short, table
from relive.server.words import UNKNOWN

if TYPE_CHECKING:
    from relive.server.build import Parts
    from relive.server.settings import Settings

keys = typer.Typer(help="Who may use the gateway.", no_args_is_help=True)

DEFAULT_CONFIG = Path("relive.toml")
Store = Annotated[Path, typer.Option(envvar="RELIVE_FILE", help="The store's file.")]


def serve(
    config: Annotated[
        Path | None, typer.Option(help="Settings, a TOML file; by default relive.toml, if it is here.")
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="Base address of the API that calls go to; for a start without a file.")
    ] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the upstream's key.")] = None,
    store: Annotated[Path | None, typer.Option(envvar="RELIVE_FILE", help="The store's file.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Port; 0 takes any free one.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the settings and upstreams, then stop.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the settings, then stop.")] = False,
) -> None:
    """Serve the gateway: agents point their base_url at it, and every call becomes an experience."""
    from relive.server.serve import serve as run  # here: other commands start faster without it
    from relive.server.settings import json_schema

    if schema:
        typer.echo(json_module.dumps(json_schema(), indent=2))
        return
    settings = _settings(config, upstream, api_key_env, store, host, port)
    if check:
        _check(settings)
        return
    run(settings, on_ready=_ready)


def _settings(
    config: Path | None,
    upstream: str | None,
    api_key_env: str | None,
    store: Path | None,
    host: str | None,
    port: int | None,
) -> "Settings":
    """The settings of the file with the options over it."""
    from relive.server.settings import load

    if config is None and upstream is None and DEFAULT_CONFIG.exists():
        config = DEFAULT_CONFIG
    if config is None and upstream is None:
        raise typer.BadParameter(
            "name where calls go, such as --upstream http://127.0.0.1:8089/v1, or a file with --config",
            param_hint="--upstream",
        )
    over: dict[str, Any] = {}
    listening = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    if listening:
        over["server"] = listening
    if store is not None:
        over["store"] = {"path": store}
    if upstream is not None:
        over["models"] = [{"name": "default", "upstream": upstream, "api_key_env": api_key_env}]
    return load(config, **over)


def _ready(url: str, parts: "Parts") -> None:
    settings = parts.settings
    out = console()
    out.print(f"Relive records calls into {settings.store.path}.", soft_wrap=True)
    out.print(f"Point your agent's base_url at {url}/v1 (Ctrl-C ends it).", soft_wrap=True)
    for note in parts.notes:
        out.print(f"Note: {note}", soft_wrap=True)


def _check(settings: "Settings") -> None:
    from relive import doctor
    from relive.server.build import make_rewards, make_routes, provider_key

    routes = make_routes(settings)
    make_rewards(settings)
    found = [
        doctor.check_endpoint(entry.upstream, provider_key(entry), entry.model or None) for entry in settings.models
    ]
    found.append(doctor.check_store_path(settings.store.path))
    rows = table("", "what", "found")
    for warning in routes.warnings:
        rows.add_row("!", "fallbacks", warning)
    for result in found:
        rows.add_row(
            "ok" if result.ok else "no", result.name, result.detail if result.ok else f"{result.detail} {result.next}"
        )
    console().print(rows)
    if not all(result.ok for result in found):
        raise typer.Exit(1)


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    store: Store = DEFAULT_FILE,
    scope: Annotated[
        list[str] | None, typer.Option(help="What it may do; repeatable. By default: call, feedback.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Whose calls it makes.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days after which it stops working.")] = None,
) -> None:
    """Make a key; it is shown this once."""
    from relive.server.build import open_keys

    ledger, ring = open_keys(store)
    try:
        expires = None if days is None else time.time() + days * 86_400
        text, _ = ring.create(name, scope or ["call", "feedback"], agent=agent, expires=expires)
    finally:
        ledger.close()
    typer.echo(text)
    typer.echo("Keep it now: only its hash is stored.", err=True)


@keys.command("list")
def list_keys(store: Store = DEFAULT_FILE, json: Json = False) -> None:
    """List the keys."""
    from relive.server.build import open_keys

    ledger, ring = open_keys(store)
    try:
        found = ring.all()
    finally:
        ledger.close()
    if json:
        print_json(found)
        return
    rows = table("id", "name", "key", "may", "agent", "state", right=("id",))
    for key in found:
        state = "works" if key.works(time.time()) else "revoked" if key.revoked is not None else "expired"
        rows.add_row(str(key.id), short(key.name, 40), key.shown, ", ".join(key.scopes), key.agent or UNKNOWN, state)
    console().print(rows)


@keys.command("revoke")
def revoke(number: Annotated[int, typer.Argument(help="Its id.")], store: Store = DEFAULT_FILE) -> None:
    """Make a key stop working."""
    from relive.server.build import open_keys

    ledger, ring = open_keys(store)
    try:
        key = ring.revoke(number)
    finally:
        ledger.close()
    typer.echo(f"{key.name} ({key.shown}) no longer works; running gateways notice within ten seconds.")
