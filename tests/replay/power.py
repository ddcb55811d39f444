"""Simulates a power loss: each sector of a file is as it was at some time since the last sync."""

import itertools
import os
import random

import numpy as np

_names = itertools.count()


def crash(images, grain, seed, directory):
    """Writes a file of blocks of `grain` bytes, each from one of the images since the last sync."""
    chooser = random.Random(seed)
    picked = (chooser.choice(images)[begin : begin + grain] for begin in range(0, len(images[0]), grain))
    path = directory / f"after-{next(_names)}.ring"
    path.write_bytes(b"".join(picked))
    return path


def other_boot(buffer):
    """Makes the file look as if it was last used before a reboot."""
    buffer._records.segment["tail"][1] = 12345


def unsynced(buffer):
    """Disables syncs from now on, as if the power failed before the call returned."""
    buffer._records.__dict__["sync"] = lambda: None


def dirty_kilobytes(path):
    """Returns the size of the dirty pages of this process's mappings of the file."""
    inode, dirty, of_file = str(os.stat(path).st_ino), 0, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                of_file = words[4] == inode
            elif of_file and words[0] in ("Shared_Dirty:", "Private_Dirty:"):
                dirty += int(words[1])
    return dirty


class Counting:
    """A ring that counts how often it is synced."""

    def __init__(self, buffer):
        self._ring, self.syncs = buffer._records.ring, 0
        buffer._records.ring = self

    def sync(self, mapping):
        self.syncs += 1
        self._ring.sync(mapping)

    def __getattr__(self, name):
        return getattr(self._ring, name)


class Numbered:
    """Rows that hold a number and bytes derived from it, and a record of which id each row got."""

    def __init__(self, size):
        self.fields = {"number": (np.uint64, ()), "body": (np.uint8, (size,))}
        self.size, self.next, self.pushed = size, 1, {}

    def bodies(self, numbers):
        places = np.arange(self.size, dtype=np.uint64)
        mixed = (numbers[:, None] + places) * np.uint64(0x9E3779B97F4A7C15)
        return (mixed >> np.uint64(56)).astype(np.uint8)

    def batch(self, count):
        numbers = np.arange(self.next, self.next + count, dtype=np.uint64)
        self.next += count
        return {"number": numbers, "body": self.bodies(numbers)}

    def push(self, buffer, count):
        batch = self.batch(count)
        ids = [int(i) for i in buffer.extend(batch)]
        self.pushed.update(zip(ids, batch["number"].tolist(), strict=True))
        return ids

    def check(self, buffer):
        """Checks that every stored row was pushed under its id, byte for byte; returns the ids."""
        ids = np.arange(max(self.pushed, default=0) + 1, dtype=np.uint64)
        found = buffer.fetch(ids)
        latest = buffer.latest(buffer.capacity)
        drawn = buffer.sample(64) if len(found.ids) else found
        for batch in (found, latest, drawn):
            assert batch["number"].tolist() == [self.pushed.get(i) for i in batch.ids.tolist()]
            assert (batch["body"] == self.bodies(batch["number"])).all()
        assert set(latest.ids.tolist()) <= set(found.ids.tolist()) >= set(drawn.ids.tolist())
        return found.ids.tolist()
