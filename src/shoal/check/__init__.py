"""`shoal check`: holds a C environment against the contract of include/shoal/env.h.

command   what the user typed -> a library (subject), compiled with --asan too (sanitize)
child     runs the suite in a process of its own and reads what it reports
suite     the checks; traces compares runs and names rows, guards puts guard bytes around all memory
crash     which C function and line a crash, an endless loop or a sanitizer's report is in
"""

from shoal.check.command import run
from shoal.check.subject import Subject
from shoal.check.suite import CHECKS

__all__ = ["CHECKS", "Subject", "run"]
