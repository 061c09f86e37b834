"""`Stored`: an experience as it lies in a store, parsed no further than it is looked at."""

from datetime import datetime
from typing import Any, TypeAlias

from relive.errors import ReliveError
from relive.experience import Outcome, TokenTrace, Transition
from relive.storage import codec, record
from relive.storage.codec import Decompressor, TraceRow
from relive.storage.damage import UNREADABLE, damaged
from relive.storage.record import COLUMNS, OUTCOMES

SELECTED = (*(f"e.{name}" for name in COLUMNS), "e.id", "e.priority", "e.uid", "e.bytes", "p.codec", "p.body")
"""What a row consists of, of ``experience e`` and ``payload p``."""

ID = len(COLUMNS)
"""Position of the id in a row."""

CODEC = ID + 4
"""Position of the payload's codec in a row."""

FLAGS = COLUMNS.index("flags")
"""Position of the flags in a row."""

Body: TypeAlias = tuple[int, bytes]


class Stored:
    """An experience as read from a store. Its payload is parsed when `transition` is first looked at.

    Attributes:
        id: Its id.
        priority: The priority in the sampling index when it was read, or else the one it was appended with; ``None``:
            neither is known.
    """

    __slots__ = ("_decompress", "_late", "_row", "_trace", "_transition", "id", "priority")

    def __init__(
        self,
        row: tuple[Any, ...],
        decompress: Decompressor,
        trace: TraceRow | None = None,
        late_next_state: Body | None = None,
    ) -> None:
        """Args: row: values of `SELECTED`; decompress: reads its bodies; the rest: what else is stored of it."""
        self.id: int = row[ID]
        self.priority: float | None = row[ID + 1]
        self._row = row
        self._decompress = decompress
        self._trace = trace
        self._late = late_next_state
        self._transition: Transition | None = None

    @property
    def transition(self) -> Transition:
        """The whole record, with reward and outcome as they held when it was read."""
        if self._transition is None:
            text = self.json()
            try:
                self._transition = record.decode(self._row, codec.decode_json(text), self._tokens())
            except ReliveError:
                raise
            except UNREADABLE as error:
                raise damaged(f"Experience {self.id}") from error
        return self._transition

    def outline(self) -> Transition:
        """The record without its payload (state, action, next_state and info are ``None``); nothing is parsed."""
        try:
            return record.decode(self._row, {}, self._tokens())
        except ReliveError:
            raise
        except UNREADABLE as error:
            raise damaged(f"Experience {self.id}") from error

    def json(self) -> bytes:
        """JSON text of the payload, byte for byte: ``state``, ``action``, and if there are ``next_state``, ``info``."""
        try:
            text = self._decompress(self._row[CODEC], self._row[CODEC + 1])
            if self._late is None:
                return text
            return text[:-1] + b',"next_state":' + self._decompress(*self._late) + b"}"
        except UNREADABLE as error:
            raise damaged(f"The payload of experience {self.id}") from error

    @property
    def uid(self) -> bytes | None:
        """Identity given by whoever appended it, for example an import; ``None``: none was."""
        uid: bytes | None = self._row[ID + 2]
        return uid

    @property
    def bytes(self) -> int:
        """Its size in the store, payload and tokens."""
        return int(self._row[ID + 3])

    @property
    def agent(self) -> str:
        """Who acted."""
        return str(self._row[0])

    @property
    def episode_id(self) -> str:
        """The episode it belongs to."""
        return str(self._row[1])

    @property
    def outcome(self) -> Outcome:
        """Its outcome as it holds now."""
        outcome: Outcome = OUTCOMES[self._row[3]]
        return outcome

    @property
    def reward(self) -> float | None:
        """Its reward as it holds now; ``None``: not known."""
        reward: float | None = self._row[4]
        return reward

    @property
    def parent(self) -> int | None:
        """Id of the experience it belongs under; ``None``: none."""
        parent: int | None = self._row[9]
        return parent

    @property
    def recorded(self) -> tuple[float | None, Outcome]:
        """Reward and outcome as they were recorded, before any feedback."""
        return self._row[8], OUTCOMES[self._row[7]]

    @property
    def created_at(self) -> datetime:
        """When it happened, UTC."""
        try:
            return record.moment(self._row[5])
        except UNREADABLE as error:
            raise damaged(f"The time of experience {self.id}") from error

    def _tokens(self) -> TokenTrace | None:
        return None if self._trace is None else codec.decode_trace(self._trace)
