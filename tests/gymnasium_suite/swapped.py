"""A pytest plugin that puts Shoal's functions where Gymnasium's own tests look for Gymnasium's."""

import gymnasium.vector.async_vector_env
import gymnasium.vector.utils

import shoal.spaces

for module in (gymnasium.vector.utils, gymnasium.vector.async_vector_env):
    for name in ("create_shared_memory", "read_from_shared_memory", "write_to_shared_memory"):
        setattr(module, name, getattr(shoal.spaces, name))
