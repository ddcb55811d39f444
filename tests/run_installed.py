"""Runs pytest against the shoal found on PYTHONPATH, past the editable install that would come first.

PYTHONPATH=build/asan-python python tests/run_installed.py -q tests/vector
"""

import sys

import pytest

sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]

if __name__ == "__main__":
    import shoal

    print(f"testing {shoal.__file__}")
    sys.exit(pytest.main(sys.argv[1:]))
