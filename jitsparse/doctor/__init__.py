"""What ``jitsparse doctor`` looks at: the machine, its compilers, the settings and the caches.

Nothing here imports torch before another process has shown that this is possible. An illegal
setting stops nothing: it is reported, and everything else is examined without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial

from jitsparse.doctor import compilers, gpu, settings, smoke, software, storage
from jitsparse.doctor.finding import Finding, guarded
from jitsparse.jit import config
from jitsparse.jit.cache import Cache
from jitsparse.jit.environment import legal_part

__all__ = ["Finding", "examine"]


def examine(*, smoke_compile: bool = True) -> list[Finding]:
    """Look at everything.

    Args:
        smoke_compile: whether to compile a kernel for the CPU and one for CUDA.

    Returns:
        The findings, in an order that depends only on what there is to look at.

    Example:
        >>> from jitsparse.doctor import examine
        >>> examine(smoke_compile=False)[0].name
        'python'
    """
    environment = os.environ
    chosen, errors = legal_part(environment)
    with config.use(chosen):
        torch = software.probe_torch()
        driver = gpu.driver_version()
        checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
            ("python", software.check_python),
            ("packages", software.check_packages),
            ("torch", lambda: software.check_torch(torch)),
            ("driver", lambda: gpu.check_driver(torch, driver)),
            ("gpu", lambda: gpu.check_gpu(torch, driver, environment)),
            ("c++", lambda: compilers.check_cxx(chosen)),
            ("ninja", lambda: compilers.check_ninja(chosen)),
            ("nvcc", lambda: compilers.check_nvcc(chosen, torch)),
            ("target", lambda: gpu.check_targets(chosen, torch)),
            ("variables", lambda: settings.check_variables(environment, chosen, errors, torch)),
            ("jit", lambda: settings.check_jit(chosen)),
            ("rank", lambda: settings.check_rank(chosen)),
            ("cache", lambda: storage.check_root(chosen)),
        ]
        layers = Cache(chosen.cache_dir, chosen.cache_path, trusted=chosen.trust_cache).layers
        for number, layer in enumerate(layers, start=1):
            name = f"layer{number}"
            checks.append((name, partial(storage.check_layer, name, layer, chosen.trust_cache)))
        checks.append(("smoke.cpu", lambda: smoke.check_smoke_cpu(torch, allowed=smoke_compile)))
        checks.append(("smoke.cuda", lambda: smoke.check_smoke_cuda(torch, allowed=smoke_compile)))
        return [finding for name, check in checks for finding in guarded(name, check)]
