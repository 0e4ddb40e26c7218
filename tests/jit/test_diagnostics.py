"""The first error of a compiler's output, whatever the compiler."""

from __future__ import annotations

import pytest

from jitsparse.jit.diagnostics import first_error

GCC = """\
In file included from kernel.cpp:4:
body/axpy.h: In instantiation of 'void axpy(T*) [with T = float]':
axpy.cpp.jinja:12:9:   required from here
body/axpy.h:7:12: warning: unused variable 'a' [-Wunused-variable]
body/axpy.h:9:3: error: 'y' was not declared in this scope
    9 |   y = 1;
      |   ^
body/axpy.h:10:3: error: 'z' was not declared in this scope
ninja: build stopped: subcommand failed.
"""
MISSING_HEADER = """\
kernel.cpp:1:10: fatal error: none.h: No such file or directory
    1 | #include "none.h"
compilation terminated.
"""
NVCC = """\
tile/mma.cuh(41): warning #177-D: variable "a" was declared but never referenced

tile/mma.cuh(41): error: static assertion failed with "N must be a multiple of 8"
    static_assert(N % 8 == 0, "N must be a multiple of 8");
    ^
          detected during instantiation of "void f<N>() [with N=9]"

1 error detected in the compilation of "kernel.cu".
"""
PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas error   : Entry function 'f' uses too much shared data (0x20000 bytes, 0x18c00 max)
ptxas fatal   : Ptx assembly aborted due to errors
"""
LINKER = """\
/usr/bin/ld: kernel.o: in function `jitsparse_launch':
kernel.cpp:(.text+0x5): undefined reference to `missing()'
collect2: error: ld returned 1 exit status
"""
NO_LIBRARY = """\
/usr/bin/ld: cannot find -lcudart: No such file or directory
collect2: error: ld returned 1 exit status
"""
KILLED = "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"
CRASHED = (
    "body/axpy.h:9:3: internal compiler error: Segmentation fault\nPlease submit a bug report\n"
)
NO_ROOM = (
    "c++: internal compiler error: File size limit exceeded signal terminated program cc1plus\n"
)


@pytest.mark.parametrize(
    ("output", "first", "lines"),
    [
        (GCC, "body/axpy.h:9:3: error: 'y' was not declared in this scope", 3),
        (MISSING_HEADER, "kernel.cpp:1:10: fatal error: none.h: No such file or directory", 2),
        (NVCC, 'tile/mma.cuh(41): error: static assertion failed with "N must be a mult', 4),
        (PTXAS, "ptxas error   : Entry function 'f' uses too much shared data", 1),
        (LINKER, "kernel.cpp:(.text+0x5): undefined reference to `missing()'", 1),
        (NO_LIBRARY, "/usr/bin/ld: cannot find -lcudart", 1),
        (KILLED, "g++: fatal error: Killed signal terminated program cc1plus", 1),
        (CRASHED, "body/axpy.h:9:3: internal compiler error: Segmentation fault", 1),
        (NO_ROOM, "c++: internal compiler error: File size limit exceeded signal", 1),
    ],
    ids=[
        *("gcc", "missing header", "nvcc", "ptxas", "linker", "missing library", "killed"),
        *("crashed", "no room"),
    ],
)
def test_first_error(output: str, first: str, lines: int) -> None:
    found = first_error(output)
    assert found.startswith(first)
    assert len(found.splitlines()) == lines


def test_no_error() -> None:
    assert first_error("ninja: no work to do.\n") == ""
