# Compiles with zig (the Python package ziglang) for an older GNU libc, or for another machine. packaging/wheels.py
# writes the programs into SHOAL_ZIG. CMAKE_SYSTEM_NAME is not set: CMake would then look for another Python.
set(CMAKE_C_COMPILER ${SHOAL_ZIG}/cc)
set(CMAKE_CXX_COMPILER ${SHOAL_ZIG}/c++)
set(CMAKE_AR ${SHOAL_ZIG}/ar)
set(CMAKE_RANLIB ${SHOAL_ZIG}/ranlib)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SHOAL_ZIG)
