"""One cache for the whole session, and what is skipped on a machine without a GPU or nvcc.

``JITSPARSE_TEST_CACHE`` names a directory to use instead of a temporary one, so that repeated runs
find the kernels of the earlier ones.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Before anything imports jitsparse: its configuration is read once.
for _name in [name for name in os.environ if name.startswith("JITSPARSE_")]:
    if not _name.startswith("JITSPARSE_TEST_"):
        del os.environ[_name]
_temporary: tempfile.TemporaryDirectory[str] | None = None
_kept = os.environ.get("JITSPARSE_TEST_CACHE")
if not _kept:
    _temporary = tempfile.TemporaryDirectory(prefix="jitsparse-tests-")
os.environ["JITSPARSE_CACHE_DIR"] = _kept or str(_temporary and _temporary.name)
# The processes of pytest-xdist read this file anew and share the cache of the first.
os.environ["JITSPARSE_TEST_CACHE"] = os.environ["JITSPARSE_CACHE_DIR"]
os.environ["JITSPARSE_LOG"] = "warning"
# torch keeps compiled graphs with their backward passes from session to session, and knows an
# operation by its name: a test would see the backward pass of the source as it was.
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"

import torch  # noqa: E402

import jitsparse  # noqa: E402
from jitsparse.errors import ToolchainError  # noqa: E402
from jitsparse.jit import config, jobs, toolchain  # noqa: E402

# Workers of pytest-xdist share the processors, and so do processes that tests start. Threads of all
# of them on each made whole files take two to five times as long, since those that wait for work
# spin.
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _workers > 1:
    torch.set_num_threads(max(1, torch.get_num_threads() // _workers))
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())

# Child processes import the package that these tests import, wherever they are started.
_package_root = str(Path(jitsparse.__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(
    [_package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Half as many again as processors for ``-n auto``: tests often wait, for locks and for the
    programs that they start."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    processors = jobs.limit()
    return processors + processors // 2


def _cuda_home() -> Path | None:
    try:
        return toolchain.find("cuda").cuda_home
    except ToolchainError:
        return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = torch.cuda.is_available()
    home = _cuda_home()
    for item in items:
        if not gpu and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU"))
        if home is None and item.get_closest_marker("nvcc"):
            item.add_marker(pytest.mark.skip(reason="no nvcc"))


@pytest.fixture(scope="session")
def nvcc() -> Path:
    """Path of nvcc, for tests marked ``nvcc``."""
    home = _cuda_home()
    if home is None:
        pytest.skip("no nvcc")
    return home / "bin" / "nvcc"


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forget the kernels that this process has mapped, as a new process would not know them."""
    from jitsparse.jit import kernel

    def forgotten() -> None:
        monkeypatch.setattr(kernel, "_mapped", {})

    forgotten()
    return forgotten


@pytest.fixture
def cache_dir(tmp_path: Path, forget: object) -> Iterator[Path]:
    """An empty cache of the test's own, in force inside this process, which has mapped nothing."""
    with config.override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"
