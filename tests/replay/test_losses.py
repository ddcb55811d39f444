"""Power losses at every traced moment: a file opens correctly, or raises if it was never acknowledged."""

from __future__ import annotations

import os
import random
from unittest.mock import patch

import pytest

from shoal.replay import files, records
from tests.replay.losses import SCENARIOS, Disk, lose


@pytest.mark.parametrize("name", SCENARIOS)
def test_files_after_a_power_loss_open_correctly_or_raise(name: str) -> None:
    seed = 0 if os.environ.get("CI") else random.randrange(10**6)
    losses, moments = lose(name, 150, seed)
    assert losses == 150 and moments > 10


def ignore_syncs_of_files(real):
    def record_sync(self: Disk, inode: int) -> None:
        self.record()
        if inode not in self.now.contents:
            real(self, inode)

    return record_sync


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("sync", lambda: patch.object(records._SyncedRecords, "sync", lambda self: None)),
        ("sync", lambda: patch.object(records, "sync_directory", lambda directory: None)),
        ("snapshot", lambda: patch.object(records, "sync_directory", lambda directory: None)),
        ("snapshot", lambda: patch.object(Disk, "record_sync", ignore_syncs_of_files(Disk.record_sync))),
        ("saved", lambda: patch.object(files, "sync_directory", lambda directory: None)),
        ("saved", lambda: patch.object(Disk, "record_sync", ignore_syncs_of_files(Disk.record_sync))),
    ],
)
def test_a_missing_sync_is_detected(name, broken) -> None:
    with broken(), pytest.raises(AssertionError, match=f"{name}, seed"):
        for seed in range(6):
            lose(name, 100, seed)
