"""CPU kernels ask the system for the size of its L2 cache, and take what it says into account."""

from __future__ import annotations

import ctypes
import platform

import cases
import pytest

# A wrong name would be answered too, with the size of another cache.
SOURCE = """
#include <unistd.h>

static long size;
extern "C" long ask(int name) noexcept { return name == _SC_LEVEL2_CACHE_SIZE ? size : 1l << 30; }
#define sysconf ask
#include "cpu/l2_cache.h"

extern "C" long long bytes_of_l2(long known) {
  size = known;
  return jitsparse::cpu::l2_bytes();
}
"""

KB, MB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def bytes_of_l2(tmp_path_factory: pytest.TempPathFactory) -> ctypes._NamedFuncPointer:
    function = cases.host_library(SOURCE, tmp_path_factory.mktemp("l2")).bytes_of_l2
    function.argtypes, function.restype = [ctypes.c_long], ctypes.c_longlong
    return function


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has a name for it")
@pytest.mark.parametrize(
    ("size", "used"),
    [
        (-1, 800 * KB),
        (0, 800 * KB),
        (512 * KB, 800 * KB),
        (MB, 800 * KB),
        (MB + 256 * KB, 1000 * KB),
        (2 * MB, 1600 * KB),
        (16 * MB, 1600 * KB),
    ],
)
def test_panels_have_four_fifths_of_it(
    bytes_of_l2: ctypes._NamedFuncPointer, size: int, used: int
) -> None:
    assert bytes_of_l2(size) == used
