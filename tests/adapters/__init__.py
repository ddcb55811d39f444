"""Adapters against the libraries they are for; `make test-adapters` installs those."""

import importlib
import warnings
from types import ModuleType

import pytest


def needs(name: str) -> ModuleType:
    """The library; its own warnings at import are not ours. Without it the tests of the file are skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.split(".")[0]:
                raise
            pytest.skip(f"{name} is not installed: make test-adapters", allow_module_level=True)
