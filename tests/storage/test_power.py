"""Policy ``power``: what was acknowledged is on the disk, wherever the power fails."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from lossy_disk import LossyDisk

from relive import Feedback, Transition
from relive.storage import SqliteStorage

CUTS = 100  # for each of the two ways to lose power


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LossyDisk, Path]]:
    """A store written to for a while, with checkpoints, evictions and feedback in between."""
    path = tmp_path_factory.mktemp("recorded") / "agent.db"
    disk = LossyDisk("lossy-power")
    with pytest.MonkeyPatch.context() as patch, SqliteStorage(path, durability="power", vfs=disk.name) as store:
        patch.setattr("relive.storage.checkpoint.CHECKPOINT_PAGES", 40)
        for number in range(120):
            batch = [Transition(state=os.urandom(300).hex(), action=number) for _ in range(1 + number % 3)]
            ids = store.append(batch, evict=[number - 40] if number > 40 and number % 5 == 0 else ())
            disk.note(("added", number, ids))
            if number % 4 == 0:
                store.feedback(Feedback(experience_id=ids[0], reward=float(number)))
                disk.note(("rewarded", number, ids))
    checkpoints = sum(event.kind == "sync" and event.file == str(path) for event in disk.events)
    assert checkpoints > 5
    yield disk, path
    disk.unregister()


@pytest.mark.parametrize("kept_anyway", [0.0, 0.5])
def test_power_loss_at_any_moment_loses_nothing_acknowledged(
    recording: tuple[LossyDisk, Path], tmp_path: Path, kept_anyway: float
) -> None:
    disk, original = recording
    rng = np.random.default_rng(0)
    copy = tmp_path / "after.db"
    moments = rng.choice(len(disk.events), CUTS, replace=False)
    acknowledged = 0
    for moment in sorted(moments.tolist()):
        notes = disk.after_power_loss(moment, original, copy, lambda: bool(rng.random() < kept_anyway))
        if not notes:
            continue  # the file itself may not be there yet
        with SqliteStorage(copy) as store:
            assert store._pool.writing().execute("PRAGMA integrity_check").get == "ok"
            rows = {row.id: row for row in store.query(limit=1000)}
        evicted = {number - 40 for kind, number, _ in notes if kind == "added" and number > 40 and number % 5 == 0}
        for kind, number, ids in notes:
            for one in set(ids) - evicted:
                if one not in rows:  # only the eviction that was under way may have taken it
                    assert one == notes[-1][1] + 1 - 40
                elif kind == "added":
                    assert rows[one].transition.action == number
                elif one == ids[0]:
                    assert rows[one].reward == number
            acknowledged += 1
    assert acknowledged > CUTS * 20


def test_the_disk_of_this_test_does_lose_what_was_not_synced(tmp_path: Path) -> None:
    path, copy = tmp_path / "agent.db", tmp_path / "after.db"
    disk = LossyDisk("lossy-process")
    with SqliteStorage(path, durability="process", vfs=disk.name) as store:
        for number in range(20):
            disk.note(store.append([Transition(state=number, action=None)]))
        moment = len(disk.events)
    notes = disk.after_power_loss(moment, path, copy)
    assert len(notes) == 20
    with SqliteStorage(copy) as store:
        assert len(store) < 20
    disk.unregister()
