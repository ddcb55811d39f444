"""The client of a Python process that runs a library's rivals (`serve.py`)."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import shoal
from shoal_lab.bench.interleave import Burst
from shoal_lab.bench.load import pss_bytes

__all__ = ["ANSWER_TIMEOUT_S", "Interpreter", "PeerError"]

ANSWER_TIMEOUT_S = 180.0
"""A peer that does not answer for this many seconds is taken to hang."""
_SCRIPT = Path(__file__).with_name("serve.py")


class PeerError(Exception):
    """The peer is not installed in that Python, or it failed."""


class Interpreter:
    """A Python process that runs one library's rivals of one group: native, process, replay."""

    def __init__(self, python: str, library: str, group: str) -> None:
        self._directory = tempfile.mkdtemp(prefix="shoal-peer-")  # a library may write files there
        python = os.path.abspath(python) if os.sep in python else python
        try:
            self._process = subprocess.Popen(
                [python, str(_SCRIPT), group, library, str(Path(shoal.__file__).parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=self._directory,
            )
        except OSError as error:
            shutil.rmtree(self._directory)
            raise PeerError(f"{python}: {error.strerror}") from None
        try:
            self.version: str = self._ask(load=library)["version"]
        except PeerError:
            self.close()
            raise

    def make(self, name: str, *arguments: Any) -> tuple[int, Burst]:
        """Makes a rival; returns its environment steps per call and its burst."""
        answer = self._ask(make=name, arguments=arguments)

        def burst(calls: int) -> float:
            return float(self._ask(burst=answer["made"], calls=calls)["seconds"])

        return int(answer["steps"]), burst

    def drop(self) -> None:
        """Ends all rivals that were made."""
        self._ask(drop=True)

    def memory_bytes(self) -> int:
        """Returns the memory of the process and its workers."""
        return pss_bytes(self._process.pid)

    def close(self) -> int:
        """Ends the process; returns its exit status, negative if it had to be killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # makes it exit
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        return self._process.returncode

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)[0]:
                self._process.kill()
                raise PeerError(f"no answer within {ANSWER_TIMEOUT_S:g} s; the process was killed")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerError(f"the process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer
