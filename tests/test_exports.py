"""The public names: what `from shoal import ...` gives, on one screen."""

import ast
import importlib
import re
import types
from pathlib import Path

import pytest

import shoal
from shoal import _core
from tests.sources import find_modules

PUBLIC = {
    "shoal": [
        "Layout",
        "ReplayBuffer",
        "Segment",
        "SharedCircularBuffer",
        "ShoalError",
        "VectorEnv",
        "__version__",
        "attach",
        "errors",
        "make_vec",
        "memory",
        "reference",
        "replay",
        "spaces",
        "state",
        "vector",
    ],
    "shoal.state": [
        "Category",
        "Curve",
        "Field",
        "History",
        "Recording",
        "Session",
        "Snapshot",
        "attach",
        "read_history",
        "render",
        "sessions",
        "to_gif",
        "to_png",
        "write_gif",
        "write_png",
    ],
    "shoal.vector": ["ProcessVectorEnv", "Rollout", "VectorEnv", "make_vec"],
    "shoal.replay": [
        "Batch",
        "PrioritizedBatch",
        "PrioritizedSampler",
        "ReplayBuffer",
        "SharedCircularBuffer",
        "TrajectoryBuffer",
    ],
    "shoal.cluster": ["ActorPolicy", "Fleet", "FleetLearner", "FleetRollout", "SimulatedCluster", "Writers"],
    "shoal.memory": ["ArrayField", "Layout", "NameEntry", "Segment", "list_names"],
    "shoal.spaces": [
        "Bounds",
        "Declaration",
        "Memory",
        "create_shared_memory",
        "declare",
        "read_from_shared_memory",
        "write_to_shared_memory",
    ],
    "shoal.reference": ["shared_memory_rl_pipeline", "zero_copy_env_simulation"],
    "shoal.errors": [
        "BuildError",
        "ClosedError",
        "CorruptFileError",
        "DiskFullError",
        "ForkedError",
        "LayoutError",
        "NameInUse",
        "NoRoomError",
        "PluginError",
        "SegmentError",
        "SegmentNotFound",
        "SessionError",
        "ShmFullError",
        "ShoalError",
        "SpaceError",
        "SpaceIndexError",
        "SpaceKeyError",
        "VersionError",
        "WorkerDied",
        "WorkerError",
        "WorkerTimeout",
    ],
}
PACKAGE = Path(shoal.__file__).parent
MODULES = sorted(
    ".".join(("shoal", *path.with_suffix("").parts)).removesuffix(".__init__")
    for path in find_modules()
    if path.name != "__main__.py"
)


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these(module):
    assert importlib.import_module(module).__all__ == PUBLIC[module]


def kind_then_name(name):
    """Constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_lists_its_names_sorted_and_has_them(module):
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:  # also of a Ray that is there without its RLlib
        if not module.startswith(("shoal.adapters.", "shoal.torch")):
            raise
        pytest.skip(f"{error}: make test-adapters, make torch")
    assert loaded.__all__ == sorted(loaded.__all__, key=kind_then_name)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
    assert loaded.__doc__, f"{module} must open with a sentence on what it holds"


def test_every_error_is_a_shoal_error_and_drawn_in_the_tree():
    errors = importlib.import_module("shoal.errors")
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), shoal.ShoalError)
        assert name in errors.__doc__


def is_protocol(node):
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)


def test_the_stub_names_what_the_native_module_has():
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    stub = {
        node.name: node
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not is_protocol(node)
    }
    constants = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    native = {name for name in vars(_core) if not name.startswith("__")}
    assert set(stub) | (constants - {"__version__"}) == native
    for name, node in stub.items():
        if isinstance(node, ast.ClassDef):
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            members = {key for key in vars(getattr(_core, name)) if not key.startswith("__")}
            assert {method for method in methods if not method.startswith("__")} == members


def test_stub_protocols_list_every_hook_that_the_binding_calls():
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    protocols = [node for node in tree.body if is_protocol(node)]
    listed = {item.name for node in protocols for item in node.body if isinstance(item, ast.FunctionDef)}
    binding = (PACKAGE.parents[1] / "core/binding").glob("*.hpp")
    called = {name for file in binding for name in re.findall(r'hooks_\.attr\("(\w+)"\)', file.read_text())}
    assert called == listed


def test_importing_shoal_loads_no_optional_package():
    import subprocess
    import sys

    script = "import sys, shoal; print([m for m in ('torch', 'rich', 'ray', 'pygame') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_the_packages():
    assert isinstance(shoal, types.ModuleType)
    assert shoal.__version__.count(".") == 2
