"""gymnax's CartPole, in a Python that has gymnax and not Shoal: a line on stdin, a time on stdout.

python gymnax_cartpole.py NUM_ENVS STEPS
"""

import sys
import time
from typing import Any

import gymnax
import jax


def main() -> None:
    num_envs, steps = int(sys.argv[1]), int(sys.argv[2])
    env, params = gymnax.make("CartPole-v1")
    key = jax.random.PRNGKey(0)
    keys = jax.random.split(key, num_envs)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)
    actions = jax.random.randint(key, (8, num_envs), 0, 2)
    step_all = jax.vmap(env.step, in_axes=(0, 0, 0, None))
    results = step_all(keys, state, actions[0], params)[2:-1]
    seen = (jax.numpy.zeros((num_envs, 4), jax.numpy.float32), *results)

    @jax.jit  # type: ignore[untyped-decorator]
    def run(state: Any, key: Any, seen: Any) -> Any:
        def step(carry: Any, number: Any) -> Any:
            state, key, _ = carry
            key, one = jax.random.split(key)
            keys = jax.random.split(one, num_envs)
            observations, state, *results, _ = step_all(keys, state, actions[number % 8], params)
            return (
                state,
                key,
                (observations, *results),
            ), None  # what a learner reads is written in each step

        return jax.lax.scan(step, (state, key, seen), jax.numpy.arange(steps))[0]

    for line in sys.stdin:
        del line
        begin = time.perf_counter()
        state, key, seen = run(state, key, seen)
        jax.block_until_ready((state, seen))
        print((time.perf_counter() - begin) / steps, flush=True)


main()
