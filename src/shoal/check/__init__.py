"""`shoal check`: tests a C environment against the contract of include/shoal/env.h.

command   turns the arguments into a library (subject), with --asan compiled for it (sanitize)
child     runs the suite in a separate process and reads its reports
device    the checks of --device, which compare kernels with the CPU; target compiles them
suite     the checks; traces compares runs and names rows, guards puts guard bytes around all memory
crash     finds the C function and line of a crash, an endless loop or a sanitizer's report
"""

from shoal.check.command import run
from shoal.check.subject import Subject
from shoal.check.suite import CHECKS

__all__ = ["CHECKS", "Subject", "run"]
