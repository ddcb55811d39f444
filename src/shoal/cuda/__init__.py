"""C environments on a GPU: the same file, compiled to one kernel per step.

plug-in.c + kernel/grid.c --clang--> PTX --the driver--> kernels       device "cuda"
                          `--cc----> a library, the grid is a loop     device "emulated"
"""

from shoal.cuda.build import build_library, build_ptx, find_source
from shoal.cuda.device import Device, Emulated, open_device

__all__ = ["Device", "Emulated", "build_library", "build_ptx", "find_source", "open_device"]
