"""Shows the aliasing hazard of zero-copy environments: the next step changes a stored view, but not a copy.

python examples/aliasing.py
"""

from shoal.reference import zero_copy_env_simulation


def main() -> None:
    steps = [
        ([[1.0, 1.0], [2.0, 2.0]], [0.5, 0.5], [0, 0]),
        ([[3.0, 3.0], [4.0, 4.0]], [1.0, 1.0], [0, 1]),
    ]
    result = zero_copy_env_simulation(
        num_envs=2,
        obs_dim=2,
        step_data=steps,
        commands=[
            ("step",),
            ("store_view", "view"),
            ("store_copy", "copy"),
            ("step",),  # the environment writes the next observation into the same buffer
            ("read", "view"),
            ("read", "copy"),
            ("check_alias", "view"),
            ("check_alias", "copy"),
        ],
    )
    view, copy = result["reads"]
    print(f"stored after step 1 as a view, read after step 2: {view}   <- overwritten by step 2")
    print(f"stored after step 1 as a copy, read after step 2: {copy}   <- still step 1")
    shares = result["alias_checks"]
    print(f"shares memory with the buffer: view {shares[0]}, copy {shares[1]}")
    print(f"the view saved copying {result['total_bytes_saved']} bytes")


if __name__ == "__main__":
    main()
