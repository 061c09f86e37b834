"""The spool: what waits for the store comes back as it was, in order, and the rest of it is bounded."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from gateway_calls import transition, uid

from relive.experience import Feedback, TokenTrace, Transition, Usage
from relive.gateway import frames
from relive.gateway.spool import Spool, Waiting, decode_record, encode_record


def test_a_record_comes_back_from_the_spool_as_it_was(tmp_path: Path) -> None:
    number = b'{"n":123456789012345678901234567890,"x":1.10}'
    whole = Transition(
        state=msgspec.Raw(number),
        action={"content": "für 🚀"},
        info={"status": "complete"},
        reward=0.5,
        tags=("a",),
        usage=Usage(input_tokens=3),
        tokens=TokenTrace(token_ids=np.array([1, 2]), mask=np.array([0, 1]), logprobs=np.array([0.0, -0.5])),
    )
    back = decode_record(encode_record(whole))
    assert bytes(back.state) == number
    assert json.loads(bytes(back.action)) == {"content": "für 🚀"}
    rest = dict.fromkeys(("state", "action", "next_state", "info"))
    assert msgspec.structs.replace(back, **rest) == msgspec.structs.replace(whole, **rest)


def test_the_spool_gives_back_all_in_order_and_its_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.gateway.spool.SEGMENT_BYTES", 2_000)
    spool = Spool(tmp_path / "spool")
    for number in range(30):
        spool.put(uid(number), transition(number))
    feedback = Feedback(episode_id="e1", reward=1.0)
    spool.put(bytes(16), feedback)
    assert spool.waiting == 31
    seen: list[Waiting] = []
    for batch in spool.batches(7):
        seen += batch
    assert [waiting.uid for waiting in seen[:-1]] == [uid(n) for n in range(30)]
    assert seen[-1].item == feedback
    assert spool.waiting == 0
    spool.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_the_spool_is_read_only_as_far_as_the_store_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[frames.Frame] = []

    def noted(path: Path) -> Iterator[frames.Frame]:
        for frame in frames.read_frames(path):
            read.append(frame)
            yield frame

    monkeypatch.setattr("relive.gateway.spool.read_frames", noted)
    spool = Spool(tmp_path)
    for number in range(30):
        spool.put(uid(number), transition(number))
    batches = spool.batches(7)
    assert [len(next(batches)), len(next(batches))] == [7, 7]
    assert len(read) == 14
    spool.close()


def test_what_is_not_taken_out_of_the_spool_waits_for_the_next_process(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(5):
        spool.put(uid(number), transition(number))
    batches = spool.batches(2)
    next(batches)
    spool.close()
    after = Spool(tmp_path)
    assert [len(batch) for batch in after.left_behind(2)] == [2, 2, 1]
    assert list(after.left_behind(2)) == []


def test_half_of_a_surrogate_pair_reaches_the_spool(tmp_path: Path) -> None:
    odd = transition(1, error="broke off at \ud83d")
    odd = msgspec.structs.replace(odd, action={"content": "cut \ud83d"})
    back = decode_record(encode_record(odd))
    assert json.loads(bytes(back.action)) == {"content": "cut \ufffd"}
    assert back.error == "broke off at \ufffd"


def test_the_spool_takes_so_much_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.gateway.spool.MOST_BYTES", 3_000)
    spool = Spool(tmp_path)
    while spool.size < 2_400:
        spool.put(uid(spool.waiting), transition(1))
    with pytest.raises(OSError, match="as much as it may"):
        spool.put(uid(1), transition(1, error="x" * 600))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 3_100
    spool.close()
