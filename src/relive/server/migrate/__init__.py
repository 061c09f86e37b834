"""Settings of other gateways as a `relive.toml`: what can be carried over is, and what cannot is said."""

from relive.server.migrate.draft import Draft, MigrationError
from relive.server.migrate.litellm import from_litellm
from relive.server.migrate.tensorzero import from_tensorzero

__all__ = ["Draft", "MigrationError", "from_litellm", "from_tensorzero"]
