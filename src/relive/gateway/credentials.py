"""What a client showed to be let in: it goes on to where it was meant for, and nowhere else."""

from relive.gateway.client import Client
from relive.gateway.routes import Model
from relive.llm.endpoint import CREDENTIALS
from relive.llm.errors import AuthenticationError, UpstreamError

_PARAMETERS = frozenset({"key", "api_key", "api-key", "apikey", "access_token", "token"})


class Credentials:
    """One call's own credentials.

    Args:
        client: Who showed them.
        own: Whether they are the client's own, and not the gateway's.
        meant_for: The model that was asked for, wherever the call goes in the end.
    """

    def __init__(self, client: Client, *, own: bool, meant_for: Model) -> None:
        self._client = client
        self._own = own
        self._origin = meant_for.endpoint.origin

    def go_to(self, model: Model) -> bool:
        """Whether a model gets them: it has none itself, and is where they were meant for."""
        return self._own and not model.endpoint.authenticated and self._meant_for(model)

    def refused(self, model: Model, failure: UpstreamError) -> bool:
        """Whether a failure of a model may be about what the client showed; where it showed none, a refusal is."""
        shown = not CREDENTIALS.isdisjoint(self._client.headers)
        return (shown or isinstance(failure, AuthenticationError)) and self.go_to(model)

    def query(self, model: Model) -> str:
        """The client's query for a model; a key in it goes only to where it was meant for."""
        query = self._client.query
        if not query or self._meant_for(model):
            return query
        return "&".join(part for part in query.split("&") if part.partition("=")[0].lower() not in _PARAMETERS)

    def _meant_for(self, model: Model) -> bool:
        return model.endpoint.origin == self._origin
