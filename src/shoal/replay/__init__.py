"""Experience replay in shared memory: what users hold."""

from shoal.replay.buffer import Batch, ReplayBuffer
from shoal.replay.circular import SharedCircularBuffer

__all__ = ["Batch", "ReplayBuffer", "SharedCircularBuffer"]
