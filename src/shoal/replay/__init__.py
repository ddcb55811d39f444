"""Experience replay in shared memory: what users hold."""

from shoal.replay.buffer import Batch, ReplayBuffer
from shoal.replay.circular import SharedCircularBuffer
from shoal.replay.prioritized import PrioritizedBatch, PrioritizedSampler

__all__ = ["Batch", "PrioritizedBatch", "PrioritizedSampler", "ReplayBuffer", "SharedCircularBuffer"]
