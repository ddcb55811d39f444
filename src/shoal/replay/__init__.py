"""Experience replay in shared memory: the public classes."""

from shoal.replay.batches import Batch, PrioritizedBatch
from shoal.replay.buffer import ReplayBuffer
from shoal.replay.circular import SharedCircularBuffer
from shoal.replay.prioritized import PrioritizedSampler
from shoal.replay.trajectories import TrajectoryBuffer

__all__ = [
    "Batch",
    "PrioritizedBatch",
    "PrioritizedSampler",
    "ReplayBuffer",
    "SharedCircularBuffer",
    "TrajectoryBuffer",
]
