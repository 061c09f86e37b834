"""After a crash: what dead gateways left under way becomes records, and what they spooled is stored."""

import logging

from relive.errors import ReliveError
from relive.experience import Transition, now
from relive.gateway.capture import Capture, Status
from relive.gateway.estimates import TokenEstimates
from relive.gateway.journal import Journal, JournaledCall
from relive.gateway.recorder import Recorder
from relive.gateway.request import CallRequest
from relive.gateway.spool import Waiting
from relive.llm.pricing import PriceTable

_log = logging.getLogger("relive.gateway")


async def recover(journal: Journal, recorder: Recorder, prices: PriceTable) -> dict[str, int]:
    """Records what dead gateways beside this store left behind; what was stored already stays as it is.

    A call whose answer had come to its end is complete; every other is interrupted, with what was received.

    Returns:
        How many calls were found by status, and under ``spooled`` how many records waited in the spool. Where the store
        does not take them now they stay where they are, for the next start.
    """
    found: dict[str, int] = {}
    try:
        spooled = await recorder.recover_spool()
        if spooled:
            found["spooled"] = spooled
        left = journal.left_behind()
        safe = False
        try:
            waiting = []
            for call in left.calls:
                try:
                    status, transition = replay(call, prices)
                except Exception:  # noqa: BLE001 - one call that cannot be read must not keep the gateway from starting
                    _log.exception("A call that an earlier gateway left behind cannot be read.")
                    continue
                waiting.append(Waiting(call.uid, transition))
                found[status] = found.get(status, 0) + 1
            await recorder.recover(waiting)
            safe = True
        finally:
            left.close(delete=safe)
    except (ReliveError, OSError) as error:
        _log.warning("What an earlier gateway left behind cannot be stored now: %s", error)
    return found


def replay(call: JournaledCall, prices: PriceTable) -> tuple[Status, Transition]:
    """The record of a call that a dead gateway left under way, and how the call ended."""
    intent = call.intent
    capture = Capture(
        CallRequest(intent.path, intent.body),
        intent.identity,
        intent.place,
        agent=intent.agent,
        created_at=intent.created_at,
        estimates=TokenEstimates(),
    )
    if call.upstream is not None:
        capture.forwarded(call.upstream, drop_usage=call.drop_usage)
    if call.begun is not None:
        capture.begin(call.begun.status, call.begun.content_type, call.begun.content_encoding)
        for piece in call.pieces:
            capture.feed(piece, None)
        capture.end()
    status: Status = "complete" if capture.reader.ended else "interrupted"
    if capture.reader.failure is not None:
        status = "failed"
    capture.note(recovered_at=now().isoformat(), snapshot=intent.snapshot)
    transition = capture.transition(status, latency_ms=None, prices=prices)
    return status, transition
