"""Every bundled environment compiles to PTX, and NVIDIA's assembler accepts it. No GPU is needed."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from shoal.cuda.build import build_ptx, find_source
from shoal.native.build import build
from shoal.native.compilers import find_zig
from shoal.native.plugin import bundled, load


def find_ptxas():
    """The assembler of the package nvidia-cuda-nvcc."""
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return next((path for place in places for path in sorted(Path(place).glob("*/bin/ptxas"))), None)


PTXAS = find_ptxas()
pytestmark = pytest.mark.skipif(
    find_zig() is None or PTXAS is None, reason="needs ziglang and nvidia-cuda-nvcc: make cuda"
)


@pytest.mark.parametrize(
    ("name", "architecture"), [("CartPole-v1", "sm_75"), *((name, "sm_90") for name in sorted(bundled()))]
)
def test_the_assembler_accepts_every_bundled_environment(name, architecture, tmp_path):
    library = bundled()[name]
    ptx = tmp_path / "kernels.ptx"
    ptx.write_text(build_ptx(load(library, {}), find_source(library, name)))
    made = tmp_path / "kernels.cubin"
    command = [str(PTXAS), f"-arch={architecture}", "-v", str(ptx), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for kernel in ("shoal_init", "shoal_reset", "shoal_step"):
        assert f"Compiling entry function '{kernel}' for '{architecture}'" in done.stderr
    assert made.stat().st_size > 0


def test_the_state_of_a_small_environment_stays_in_registers():
    library = bundled()["CartPole-v1"]
    text = build_ptx(load(library, {"precision": "float"}), find_source(library, "CartPole-v1"))
    step = text[text.index(".entry shoal_step") :]
    step = step[: step.index(".entry", 10)]
    assert not re.search(r"\bld\.local|\bcall\b", step)


@pytest.mark.parametrize("floats", [94, 95, 96, 192, 384])
def test_rows_that_fill_the_shared_memory_leave_room_for_the_kernels_own(floats, tmp_path):
    source = tmp_path / "wide.c"
    plain = (Path(__file__).parent / "plain.c").read_text()
    source.write_text(
        plain.replace(
            "SHOAL_FLOAT64, .ndim = 1, .shape = {3}", f"SHOAL_FLOAT32, .ndim = 1, .shape = {{{floats}}}"
        )
    )
    ptx = tmp_path / "kernels.ptx"
    ptx.write_text(build_ptx(load(build(source), {}), source))
    command = [str(PTXAS), "-arch=sm_90", str(ptx), "-o", str(tmp_path / "kernels.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
