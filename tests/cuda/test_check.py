"""`shoal check --device`: compares a device with the CPU, in a child process with a time limit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal import check
from shoal.check import device as device_checks
from shoal.check import target
from shoal.check.child import Crashed, _explain_end, run_checks
from shoal.check.device import DEVICE_CHECKS, DeviceLost, OnDevice, find_pointers
from shoal.check.subject import CheckDoubt, CheckFailed, Subject, Target, prepare_subject
from shoal.cli import main
from shoal.cuda.build import find_source
from shoal.cuda.driver import DriverError
from shoal.native.compilers import find_zig
from tests.check.conftest import line_of, needs_compiler
from tests.check.test_crash import needs_addr2line
from tests.check.test_sanitize import needs_asan
from tests.cuda.conftest import needs_zig

pytestmark = needs_compiler
RUN = len(DEVICE_CHECKS) + 1  # and `loads`


def subject_of(path: Path, *, device: str = "emulated", uses_libm: bool = False) -> Subject:
    subject = prepare_subject(str(path), {}, ["-g"])
    return Subject(subject.library, target=Target(device, str(path), ["-g"], "", uses_libm))


def test_a_plug_in_that_keeps_the_contract_passes(run_check):
    status, report = run_check()
    assert status == 0, report
    compiled = "ok      It compiles for a GPU" in report
    assert report.count("ok      ") == RUN + compiled and compiled == (find_zig() is not None)
    assert "ok      The device gives the CPU's bytes" in report


@pytest.mark.parametrize("env", ["CartPole-v1", "Snake-v0"])  # lanes; several agents
def test_bundled_environments_pass(env):
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "check", "--device", "emulated", env], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok      ") >= RUN


def test_without_a_gpu_the_emulated_device_is_used_with_a_warning(run_check, monkeypatch):
    monkeypatch.setattr(target, "open_device", lambda name: (_ for _ in ()).throw(check_error()))
    status, report = run_check(device="cuda:3")
    assert status == 0, report
    assert (
        "warning There is no GPU here; the checks run on the emulated device\n        no libcuda." in report
    )
    assert "ok      The device gives the CPU's bytes" in report


def check_error() -> CheckFailed:
    return CheckFailed("no libcuda. Leave device out")


def test_without_the_compiler_a_warning_says_that_it_was_not_compiled(run_check, monkeypatch):
    monkeypatch.setattr(target, "find_zig", lambda: None)
    status, report = run_check()
    assert status == 0 and 'pip install "shoal[cuda]"' in report
    assert "warning It was not compiled for a GPU: there is no package ziglang" in report


@needs_zig
def test_a_step_that_calls_libc_fails_and_names_the_function(run_check):
    status, report = run_check(GLOBAL="int rand(void);", STEP="self->place += rand() % 2;")
    assert status == 1
    assert "FAILED  It compiles for a GPU\n" in report and "uses rand, which a GPU does not have" in report
    assert f"{len(DEVICE_CHECKS) - 1} checks were not run because of this" in report


@needs_zig
def test_memory_that_init_allocates_is_a_warning_and_a_failure(write_walk, capsys):
    source = write_walk(GLOBAL="#include <stdlib.h>", RESET="self->notes[0] = 1;")
    text = source.read_text().replace("int64_t place;\n", "int64_t place; char *notes;\n")
    init = (
        "static const char *init(shoal_envs *envs, uint64_t env) { SHOAL_INSTANCE(Walk, envs, env)->notes = "
    )
    init += "calloc(1, 64); return 0; }\n"
    entry = "const shoal_entry_v1 shoal_entry = {\n"
    source.write_text(text.replace(entry, f"{init}{entry}    .init = init,\n"))
    assert check.run(str(source), device="emulated") == 1
    report = capsys.readouterr().out
    assert "warning It keeps no pointers in its struct\n" in report and "at byte 8." in report
    assert re.search(r"FAILED  It compiles for a GPU\n.* uses calloc, which a GPU does not have", report)


def test_a_difference_between_device_and_cpu_is_named(write_walk):
    only_grid = "\n".join(["#ifdef SHOAL_GRID", "if (env == 140) row[1] += 1;", "#endif"])
    source = write_walk()
    source.write_text(source.read_text().replace("/* SHOW */", only_grid))
    with pytest.raises(CheckFailed) as caught:
        DEVICE_CHECKS["next_step"](subject_of(source))
    assert "after reset, observation field 'place', environment 140, element [1]: " in str(caught.value)


CHANGES = {
    "same_step": (
        "STEP",
        "envs->terminated[env] = 1;",
        "at step 1, observation field 'place', environment 0",
    ),
    "disabled": (
        "RESET",
        "static int64_t resets; self->place += resets++ >= 150;",  # from the first masked reset on
        "after a reset of some environments after step",
    ),
    "masks": ("OBSERVE", "self->place += 1;", "after a reset of some environments after step 5, observation"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_check_of_bytes_sees_its_own_difference(name, write_walk):
    slot, code, message = CHANGES[name]
    source = write_walk()
    source.write_text(source.read_text().replace(f"/* {slot} */", f"\n#ifdef SHOAL_GRID\n{code}\n#endif\n"))
    with pytest.raises(CheckFailed, match=message):
        DEVICE_CHECKS[name](subject_of(source))


def test_last_observations_and_returns_of_episodes_are_compared(write_walk, monkeypatch):
    subject = subject_of(write_walk())
    real = OnDevice.step
    for key in ("final_obs", "episode"):

        def step(self, actions, key=key):
            results = real(self, actions)
            part = results[4].get(key)
            if part is not None and (results[2] | results[3]).any():
                row = int((results[2] | results[3]).argmax())
                part["place" if key == "final_obs" else "r"][row] += 1
            return results

        monkeypatch.setattr(OnDevice, "step", step)
        named = "last observation field 'place'" if key == "final_obs" else r"info\['episode'\]\['r'\]"
        with pytest.raises(CheckFailed, match=named):
            DEVICE_CHECKS["same_step"](subject)


def test_libm_on_a_gpu_makes_a_difference_a_warning(write_walk, monkeypatch):
    """The GPU is played by the emulated device."""
    source = write_walk()
    source.write_text(source.read_text().replace("/* SHOW */", "\n#ifdef SHOAL_GRID\nrow[1] += 1;\n#endif\n"))
    monkeypatch.setattr(OnDevice, "_is_gpu", False)
    with pytest.raises(CheckDoubt, match="functions of libm.*\nthe first difference: after reset"):
        DEVICE_CHECKS["next_step"](subject_of(source, device="cuda", uses_libm=True))
    with pytest.raises(CheckFailed, match="the device and the CPU differ"):
        DEVICE_CHECKS["next_step"](subject_of(source, device="emulated", uses_libm=True))


@needs_addr2line
def test_an_endless_loop_is_ended_and_its_line_is_named(run_check, monkeypatch):
    monkeypatch.setattr("shoal.check.subject.CALL_LIMIT_S", 2)
    only_grid = "if (envs->num_envs == 150) for (volatile int64_t i = 0;; i++) i ^= 1;"
    status, report = run_check(STEP=only_grid)
    assert status == 1
    assert "        step did not return within 2 s: is there an endless loop?\n" in report
    assert re.search(rf" in step_one, .*walk\.c:{line_of('STEP')}\n", report), report
    assert "3 checks were not run because of this" in report


def test_an_endless_loop_on_a_gpu_names_the_command_that_finds_its_line(write_walk, tmp_path):
    subject = subject_of(write_walk(), device="cuda")
    child = subprocess.Popen([sys.executable, "-c", ""])
    with open(tmp_path / "printed", "w+b") as printed, open(tmp_path / "crash", "w+b") as crash:
        crash.write(b"signal 14\ncall step\n")
        message = _explain_end(child, subject, [], printed, crash)
    assert message.startswith(
        "step did not return within 10 s: is there an endless loop?\n`shoal check --device"
    )
    assert "emulated" in message and "names the line" in message


def test_a_kernel_that_fails_ends_the_checks_and_names_its_call(write_walk, monkeypatch):
    lost = DriverError("cuStreamSynchronize failed: ILLEGAL_ADDRESS (700): bad. A kernel failed earlier", 700)
    envs = OnDevice(subject_of(write_walk()), 4)
    envs.reset(seed=[1, 2, 3, 4])
    monkeypatch.setattr(envs._envs, "check", lambda: (_ for _ in ()).throw(lost))
    with pytest.raises(DeviceLost) as caught:
        envs.step(np.zeros(4, np.int64))
    monkeypatch.undo()
    envs.close()
    message = str(caught.value)
    assert message.startswith(
        "the kernel of step failed on the GPU: cuStreamSynchronize failed: ILLEGAL_ADDRESS"
    )
    assert "shoal check --device emulated --asan" in message and "earlier" not in message
    assert not DriverError("no memory", 2).is_lost


LOSES = """
import json, sys
from shoal.check import child
def lose(subject):
    raise child.DeviceLost("the kernel of step failed")
child._ALL["starts"] = lose
child.serve(json.loads(sys.argv[1]))
"""


def test_after_a_failed_kernel_no_other_check_runs(write_walk, monkeypatch):
    subject = subject_of(write_walk())
    real = subprocess.Popen

    def popen(command, **keywords):
        return real([sys.executable, "-c", LOSES, command[-1]], **keywords)

    monkeypatch.setattr("shoal.check.child.subprocess.Popen", popen)
    ((name, problem),) = run_checks(subject, ["starts", "next_step", "masks"], {})
    assert name == "starts" and isinstance(problem, Crashed) and problem == "the kernel of step failed"


@needs_addr2line
def test_a_crash_in_a_kernel_has_its_line(run_check):
    _, report = run_check(STEP="if (envs->num_envs == 150) *(volatile int *)0 = 1;")
    assert "SIGSEGV in step" in report and f"walk.c:{line_of('STEP')}" in report


@needs_asan
@needs_addr2line
@pytest.mark.parametrize(
    "slot, code",
    [
        ("STEP", "if (env == 149) ((char *)self)[sizeof *self + 9] = 1;"),
        ("STEP", "if (env == 149) *SHOAL_OBSERVATION(double, envs, 0, env + 1) = 1;"),
    ],
    ids=["struct", "observation"],
)
def test_asan_runs_the_kernels_on_the_cpu_and_names_the_line(slot, code, run_check, monkeypatch):
    monkeypatch.setattr(target, "open_device", lambda name: None)  # as if there was a GPU
    status, report = run_check(asan=True, device="cuda", **{slot: code})
    assert status == 1
    assert re.search(r"AddressSanitizer: heap-buffer-overflow, a write of \d bytes?\n", report), report
    assert re.search(rf" in step_one, .*walk\.c:{line_of(slot)}\n", report), report
    assert "grid.c" in report  # it was called by a kernel


@needs_asan
def test_a_bundled_environment_passes_under_asan(capsys):
    assert check.run("Snake-v0", asan=True, device="emulated") == 0, capsys.readouterr().out


def test_pointers_are_found_where_they_point_into_memory_that_is_there():
    data = np.array([0x7F0000001000, 5, 0x7F0000002000], np.uint64).view(np.uint8)
    assert find_pointers(data, [(0x7F0000001000, 0x7F0000002000)]) == {0}
    assert find_pointers(data[:-4], [(0x7F0000000000, 0x7F0000003000)]) == {0}  # the last word is not whole
    assert find_pointers(data, []) == set()


def test_numbers_that_are_no_pointers_pass(write_walk):
    DEVICE_CHECKS["pointers"](subject_of(write_walk()))
    with pytest.raises(CheckDoubt, match="at byte 0"):
        DEVICE_CHECKS["pointers"](subject_of(write_walk(RESET="self->place = (int64_t)(uintptr_t)self;")))


def test_a_warning_of_the_child_is_not_a_failure(write_walk):
    subject = subject_of(write_walk(RESET="self->place = (int64_t)(uintptr_t)self;"))
    ((name, problem),) = run_checks(subject, ["pointers"], {})
    assert name == "pointers" and type(problem).__name__ == "Doubted"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--device", "gpu", "CartPole-v1"], 'must be "cpu", "cuda", "cuda:N" or "emulated", got \'gpu\''),
        (["--device", "cuda", "walk.cpp"], "walk.cpp is C++, and a GPU needs an environment in C"),
        (["--device", "cuda", "walk.so"], "a GPU needs the C source of the environment"),
        (["--device", "cuda", "puffer:walk"], "PufferLib's environments allocate memory in init"),
    ],
)
def test_arguments_that_cannot_be_checked_are_status_2(arguments, message, capfd):
    assert main(["check", *arguments]) == 2
    assert message in capfd.readouterr().err


def test_the_source_of_a_bundled_environment_is_found():
    subject = prepare_subject("Squared-v0", {}, [])
    assert find_source(subject.library, "Squared-v0").name == "squared.c"
    assert device_checks._ENVS > 128  # more than one block of threads
