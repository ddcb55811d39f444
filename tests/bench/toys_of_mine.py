"""What a user hands to --mine."""

import gymnasium

from shoal_lab.bench.toys import Still

NUMBER = 3


def make() -> gymnasium.Env:
    return Still()


def make_nothing() -> object:
    return object()
