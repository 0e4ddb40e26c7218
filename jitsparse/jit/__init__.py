"""The toolkit: kernels from templates, compiled on first use, cached, pinned and tuned.

It knows nothing of sparse matrices. A template of your own is loaded the same way as ours:

    >>> import ctypes, pathlib, tempfile
    >>> from jitsparse import jit
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "scale.cpp.jinja").write_text('''
    ... struct Args { {{ type }}* x; long long n; };
    ... extern "C" int jitsparse_launch(const void* words) {
    ...   const Args& a = *static_cast<const Args*>(words);
    ...   for (long long i = 0; i < a.n; ++i) a.x[i] *= {{ factor }};
    ...   return a.n < 0;
    ... }
    ... extern "C" const char* jitsparse_error(int) { return "n is negative"; }
    ... ''')
    >>> template = jit.Template(
    ...     name="scale",
    ...     source=folder / "scale.cpp.jinja",
    ...     language="c++",
    ...     include_dirs=(),
    ...     arguments=2,
    ...     context=lambda variant: {
    ...         "type": {"f32": "float", "f64": "double"}[variant.dtype],
    ...         "factor": int(variant.knob("f")),
    ...     },
    ... )
    >>> variant = jit.Variant("scale", "plain", jit.cpu_target(), "f32", (("f", "3"),))
    >>> scale = jit.load(template, variant)
    >>> x = (ctypes.c_float * 4)(1, 2, 3, 4)
    >>> scale(ctypes.addressof(x), len(x))
    >>> list(x)
    [3.0, 6.0, 9.0, 12.0]

A launcher takes one pointer to an array of ``arguments`` 64-bit values, and returns 0 or a code
that ``jitsparse_error`` explains. Includes of the template's own headers are followed, and their
text is part of the cache key.
"""

from __future__ import annotations

from typing import Any

from jitsparse.jit import cache as _cache
from jitsparse.jit.cache import Cache
from jitsparse.jit.config import first_use
from jitsparse.jit.describe import Description, describe, explain_miss
from jitsparse.jit.entry import Entry
from jitsparse.jit.kernel import Kernel, compile_only, is_cached, load, obstacle
from jitsparse.jit.pins import declare_ops, declare_values, pin
from jitsparse.jit.selection import Candidate, Choice, choose
from jitsparse.jit.targets import cpu_target, cuda_target
from jitsparse.jit.template import Template
from jitsparse.jit.variant import Variant

__all__ = [
    "Cache",
    "Candidate",
    "Choice",
    "Description",
    "Entry",
    "Kernel",
    "Template",
    "Variant",
    "cache_info",
    "choose",
    "clear_cache",
    "compile_only",
    "cpu_target",
    "cuda_target",
    "declare_ops",
    "declare_values",
    "describe",
    "explain_miss",
    "first_use",
    "is_cached",
    "load",
    "obstacle",
    "pin",
]


def cache_info() -> dict[str, Any]:
    """Facts about the cache in use.

    Returns:
        ``path`` (where entries are written), ``layers`` (read-only caches in front of it), and over
        all of these ``entries`` (how many), ``bytes`` (of their libraries) and ``compile_seconds``
        (in total).

    Example:
        >>> import jitsparse as js
        >>> sorted(js.cache_info())
        ['bytes', 'compile_seconds', 'entries', 'layers', 'path']
    """
    return _cache.current().info()


def clear_cache() -> int:
    """Delete every entry of the writable cache; returns how many there were.

    Kernels that this process has mapped keep working. Read-only caches are left alone.
    """
    return _cache.current().clear()
