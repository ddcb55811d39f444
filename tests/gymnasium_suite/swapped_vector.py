"""A pytest plugin that puts ProcessVectorEnv where Gymnasium's own tests look for AsyncVectorEnv.

SHOAL_CONTEXT=fork, forkserver or spawn makes that its default start method.
"""

import os

import gymnasium.vector
import gymnasium.vector.async_vector_env
from gymnasium.vector import AutoresetMode

from shoal.vector import ProcessVectorEnv

CONTEXT = os.environ.get("SHOAL_CONTEXT") or None


class AsyncVectorEnv(ProcessVectorEnv):
    """With a start method chosen from outside."""

    def __init__(
        self,
        env_fns,
        shared_memory=True,
        copy=True,
        context=CONTEXT,
        daemon=True,
        worker=None,
        observation_mode="same",
        autoreset_mode=AutoresetMode.NEXT_STEP,
        max_concurrency=None,
    ):
        super().__init__(
            env_fns,
            shared_memory,
            copy,
            context,
            daemon,
            worker,
            observation_mode,
            autoreset_mode,
            max_concurrency,
        )


for module in (gymnasium.vector, gymnasium.vector.async_vector_env):
    module.AsyncVectorEnv = AsyncVectorEnv
