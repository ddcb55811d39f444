"""Power that is lost at every traced moment: opening recovers, or refuses what was never acknowledged."""

from __future__ import annotations

import os
import random
from unittest.mock import patch

import pytest

from shoal.replay import files, records
from tests.replay.losses import SCENARIOS, Disk, lose


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_a_loss_of_power_leaves_is_opened_or_refused_and_never_lies(name: str) -> None:
    seed = 0 if os.environ.get("CI") else random.randrange(10**6)
    losses, moments = lose(name, 150, seed)
    assert losses == 150 and moments > 10


def files_are_not_synced(real):
    def synced(self: Disk, inode: int) -> None:
        self.look()
        if inode not in self.now.contents:
            real(self, inode)

    return synced


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("sync", lambda: patch.object(records._SyncedRecords, "sync", lambda self: None)),
        ("sync", lambda: patch.object(records, "sync_directory", lambda directory: None)),
        ("snapshot", lambda: patch.object(records, "sync_directory", lambda directory: None)),
        ("snapshot", lambda: patch.object(Disk, "synced", files_are_not_synced(Disk.synced))),
        ("saved", lambda: patch.object(files, "sync_directory", lambda directory: None)),
        ("saved", lambda: patch.object(Disk, "synced", files_are_not_synced(Disk.synced))),
    ],
)
def test_a_sync_that_is_left_out_is_found_out(name, broken) -> None:
    with broken(), pytest.raises(AssertionError, match=f"{name}, seed"):
        for seed in range(6):
            lose(name, 100, seed)
