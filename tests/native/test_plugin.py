"""A plug-in that says something wrong is a PluginError that names it; options arrive as they were meant."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.errors import PluginError, ShoalError
from shoal.native.build import build
from tests.native.conftest import REAL

pytestmark = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    return build(PLUGINS / "refused.c", output=tmp_path_factory.mktemp("refused") / "refused.so")


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return build(PLUGINS / "options.c", output=tmp_path_factory.mktemp("options") / "options.so")


# -- what cannot be loaded ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (1, "two options are called mistake"),
        (2, "the default of option mode is NULL"),
        (3, "exports no symbol shoal_entry"),
        (4, "built for ABI 2.0 of shoal/env.h, this Shoal runs ABI 1; rebuild it"),
        (5, "step is NULL"),
    ],
)
def test_a_library_with_a_bad_entry_is_refused_by_path_and_reason(tmp_path, entry, message):
    compiler = f"{os.environ.get('CC') or 'cc'} -DENTRY={entry}"
    library = build(PLUGINS / "refused.c", output=tmp_path / "bad.so", compiler=compiler)
    with pytest.raises(PluginError, match=re.escape(message)) as raised:
        shoal.make_vec(library, 2)
    assert str(library) in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"not an ELF file\n", b"\x7fELF\x02\x01\x01" + bytes(57)])
def test_a_file_that_is_no_library_is_refused(tmp_path, content):
    library = tmp_path / "text.so"
    library.write_bytes(content)
    with pytest.raises(PluginError, match=re.escape(f"{library} cannot be loaded: ")):
        shoal.make_vec(library)


def test_a_missing_library_is_refused_by_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginError, match=re.escape(f"{tmp_path / 'none.so'} cannot be loaded: ")):
        shoal.make_vec("none.so")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (1, "mistake must not be 1"),
        (2, "observation seen: unknown dtype {code 2, bits 33, lanes 1}"),
        (3, "observation seen: 7 dimensions, at most 6"),
        (4, "observation seen: dimension 0 is -4"),
        (5, "observation seen: low nan is not at most high 1"),
        (6, "action (unnamed): discrete bounds 0 and 0.5 must be whole numbers"),
        (7, "action (unnamed): a discrete field needs an integer dtype"),
        (8, "lanes must be a power of two up to 1024, got 3"),
        (9, "agents must be from 1 to 1048576, got 0"),
        (10, "max_episode_steps must be from 0 to 4294967295, got -1"),
        (11, "instance_bytes must be at most 1099511627776, got 18446744073709551615"),
        (12, "two observations are called seen"),
        (13, "describe declared no observation"),
        (14, "action (unnamed): bounds 0 and 255, and how many values they allow, do not fit its dtype"),
    ],
)
def test_a_bad_description_is_refused_by_field_and_number(refused, mistake, message):
    with pytest.raises(PluginError, match=re.escape(f"Refused-v0: {message}")):
        shoal.make_vec(refused, 2, mistake=mistake)
    shoal.make_vec(refused, 2).close()  # the library itself is fine


# -- options ------------------------------------------------------------------------------------------


def seen(library, **given):
    """What the plug-in got: size, scale * 1000, length and first letter of mode."""
    with shoal.make_vec(library, 1, **given) as envs:
        return envs.reset(seed=0)[0][0].tolist()


def test_options_have_the_plug_ins_defaults(options):
    assert seen(options) == [3, 500, 4, ord("e")]
    with shoal.make_vec(options, 1, size=5) as envs:
        assert envs.options == {"size": 5, "scale": 0.5, "mode": "easy"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"size": -7}, [-7, 500, 4, ord("e")]),
        ({"size": True}, [1, 500, 4, ord("e")]),
        ({"size": np.int8(9)}, [9, 500, 4, ord("e")]),
        ({"size": np.bool_(True)}, [1, 500, 4, ord("e")]),
        ({"size": 2**63 - 1}, [2**63 - 1, 500, 4, ord("e")]),
        ({"size": -(2**63)}, [-(2**63), 500, 4, ord("e")]),
        ({"scale": 2}, [3, 2000, 4, ord("e")]),
        ({"scale": np.float32(0.25)}, [3, 250, 4, ord("e")]),
        ({"scale": True}, [3, 1000, 4, ord("e")]),
        ({"mode": "hard, very"}, [3, 500, 10, ord("h")]),
        ({"mode": ""}, [3, 500, 0, 0]),
        ({"mode": "ä"}, [3, 500, 2, 0xC3]),
        ({"size": 1, "scale": 1.0, "mode": "x"}, [1, 1000, 1, ord("x")]),
    ],
    ids=str,
)
def test_an_option_reaches_the_plug_in_as_its_type(options, given, expected):
    assert seen(options, **given) == expected


def test_string_option_is_valid_as_long_as_the_environments(options):
    with shoal.make_vec(options, 3, mode="".join(["long ", "enough ", "to be ", "on the heap"])) as envs:
        [str(i) * 24 for i in range(1000)]
        envs.reset(seed=0)
        assert envs.step([0, 0, 0])[0][:, 2].tolist() == [29] * 3


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"sise": 5}, TypeError, "Options-v0 has no option 'sise'; it has ['mode', 'scale', 'size']"),
        ({"b": 1, "a": 2}, TypeError, "Options-v0 has no option 'a', 'b'"),
        ({"size": 5.0}, TypeError, "Options-v0: option 'size' must be of type int, got float: 5.0"),
        ({"size": "5"}, TypeError, "option 'size' must be of type int, got str: '5'"),
        ({"size": None}, TypeError, "option 'size' must be of type int, got NoneType"),
        ({"scale": "1"}, TypeError, "option 'scale' must be of type float, got str: '1'"),
        ({"mode": 1}, TypeError, "option 'mode' must be of type str, got int: 1"),
        ({"mode": b"easy"}, TypeError, "option 'mode' must be of type str, got bytes"),
        ({"size": 2**63}, PluginError, f"option 'size' must fit 64 bits, got {2**63}"),
        ({"size": -(2**63) - 1}, PluginError, "option 'size' must fit 64 bits"),
        ({"mode": "impossible"}, PluginError, "Options-v0: mode must not be impossible"),
    ],
    ids=str,
)
def test_a_bad_option_is_named(options, given, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        shoal.make_vec(options, 1, **given)


# -- starting -----------------------------------------------------------------------------------------


def test_an_environment_that_cannot_start_says_which_and_why(options):
    with pytest.raises(PluginError, match="Options-v0: environment 2: the machine is on fire"):
        shoal.make_vec(options, 4, mode="broken")
    shoal.make_vec(options, 2, mode="broken").close()


def test_missing_extensions_are_shoal_errors(options):
    with pytest.raises(ValueError, match="Options-v0 in C cannot be drawn"):
        shoal.make_vec(options, 2, render_mode="rgb_array")
    with shoal.make_vec(options, 2) as envs:
        envs.reset(seed=0)
        with pytest.raises(ShoalError, match="cannot be drawn: it has no shoal.render/1"):
            envs.render_env(0)
        with pytest.raises(ShoalError, match="cannot be saved: it has no shoal.checkpoint/1"):
            envs.save_env(0)
        envs.step([0, 0])


def test_one_library_serves_many_environments_with_other_options(options):
    with shoal.make_vec(options, 1, size=1) as one, shoal.make_vec(options, 2, size=2) as two:
        assert one.reset(seed=0)[0][:, 0].tolist() == [1]
        assert two.reset(seed=0)[0][:, 0].tolist() == [2, 2]
    with shoal.make_vec(options, 1) as again:
        assert again.reset(seed=0)[0][0, 0] == 3
