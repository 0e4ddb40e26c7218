"""One build: a variant is rendered and compiled by ``torch.utils.cpp_extension.load``.

``load`` is called only for a miss, in a directory that no other process uses, because much of what
it does is unsafe in a shared one: it links in place, up to torch 2.13 it waits forever on the lock
of a builder that was killed, and after a failure the next call in the process skips the build.

A kernel needs nothing from torch, so the compiler could be called directly. ``load`` is used
because it is torch's own: whatever a distribution or a cluster patches in torch so that extensions
build there (compilers, flags, ABI, location of CUDA) works for kernels, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import locale
import os
import re
import signal
import threading
import time
from pathlib import Path
from weakref import WeakSet

from jitsparse.errors import CompileError, ToolchainError
from jitsparse.jit import extensions, files, forks, ninja, toolchain
from jitsparse.jit.diagnostics import first_error, incomplete
from jitsparse.jit.entry import FUNCTIONS, LIBRARY, LOG
from jitsparse.jit.targets import compile_flags, link_flags, without_cuda
from jitsparse.jit.template import Template, own_headers, render, roots_of
from jitsparse.jit.variant import Variant

__all__ = ["BuildFailure", "build", "check_backend", "interrupt", "is_interrupted", "unusable_name"]


class BuildFailure(Exception):
    """The compiler rejected the source; carries its output and the command that was run."""

    def __init__(self, output: str, command: str) -> None:
        super().__init__(first_error(output))
        self.output = output
        self.command = command


def check_backend(template: Template, variant: Variant) -> None:
    """Check that this torch can build the template's language at all.

    Raises:
        ToolchainError: a CUDA template, and torch was built without CUDA.
    """
    forks.ready("torch")
    unable = without_cuda()
    if template.language == "cuda" and unable:
        raise ToolchainError(f"{variant.name} is a CUDA kernel, and {unable}.")


def build(
    template: Template, variant: Variant, name: str, tools: toolchain.Toolchain, staging: Path
) -> float:
    """Compile a variant into a staging directory, which then holds source, library and log.

    Args:
        template: what it is rendered from.
        variant: the variant to compile.
        name: name of the future entry, which no other thread of this process builds meanwhile.
        tools: the compilers.
        staging: an empty directory.

    Returns:
        Seconds that compiling took.

    Raises:
        CompileError: the template cannot be rendered, includes a file that its text does not name,
            or lacks a required function.
        BuildFailure: the compiler rejected the source. Source and log are in the directory.
        ToolchainError: ninja or the compiler cannot be run, or a path cannot be passed to them.
        OSError: something cannot be written.
    """
    _check_names(template, variant, tools, staging)
    forks.ready("jinja2", "jitsparse.jit.line_marks")
    extensions.ready()
    source = staging / f"kernel{template.suffix}"
    source.write_text(render(template, template.context(variant)), encoding="utf-8")
    started = time.perf_counter()
    module = "jitsparse_" + re.sub(r"\W", "_", name)
    output, failed = _load(template, variant, module, tools, staging, source)
    seconds = time.perf_counter() - started
    commands = ninja.commands(staging, source.name)
    log = staging / LOG
    log.write_text("\n".join([*commands, "", output]).rstrip() + "\n", encoding="utf-8")
    library = staging / f"{module}.so"
    if failed:
        _sweep(staging, keep=(source.name, LOG))
        raise BuildFailure(output, " && ".join(commands))
    _require_known_headers(template, variant, tools, staging)
    _require_functions(template, variant, library)
    os.rename(library, staging / LIBRARY)
    _sweep(staging, keep=(source.name, LOG, LIBRARY))
    return seconds


def _require_known_headers(
    template: Template, variant: Variant, tools: toolchain.Toolchain, staging: Path
) -> None:
    """Check that the key covers every own header that the compiler itself reports as included.

    Raises:
        CompileError: one does not show in the text of the template and its headers.
    """
    own = own_headers(template, template.context(variant))
    # nvcc lists files named by #line among those that it has read.
    known = {os.path.realpath(path) for path in (str(template.source), *own)}
    unknown = ninja.dependencies(staging, tuple(roots_of(template))) - known
    if unknown:
        # nvcc also lists its own headers, which may be below these directories, as libraries may.
        others = [*tools.header_directories(), *(folder for folder, _ in template.libraries)]
        theirs = tuple(os.path.realpath(each) + os.sep for each in others)
        unknown = {path for path in unknown if not path.startswith(theirs)}
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise CompileError(
            f"template {template.name!r} cannot be compiled\n"
            f"  it includes {min(unknown)}{more}, which the text does not show: write #include "
            'with the name in "" or <> on a line of its own. A header that is not known would not '
            "be part of the cache key, and what it was before an edit would run",
            variant=variant.name,
            source_path=str(template.source),
        )


def _require_functions(template: Template, variant: Variant, library: Path) -> None:
    """Check for the functions that loading the kernel needs, perhaps on another machine.

    Raises:
        CompileError: the template does not define one.
    """
    try:
        mapped = ctypes.CDLL(str(library))
    except OSError:
        return  # it may have been built for another machine
    for name in FUNCTIONS:
        if not hasattr(mapped, name):
            raise incomplete(variant.name, template.source, name)


_IN_BUILD_FILES = "$\n\r"
"""Characters with a special meaning anywhere in the file that torch writes for ninja."""
_IN_OUTPUTS = _IN_BUILD_FILES + ":|"
"""Those, and characters with one in the paths of what is built."""


def unusable_name(path: Path, forbidden: str = _IN_OUTPUTS) -> str:
    """Why nothing can be built in a directory of this name, or an empty string.

    Args:
        path: the directory, or a program or a header's directory.
        forbidden: characters that its path must not have.
    """
    for character in forbidden:
        if character in str(path):
            return f"there is a {character!r} in the path {path}"
    try:
        str(path).encode(locale.getpreferredencoding(False))
    except UnicodeEncodeError as error:
        return f"the path {path} has bytes that are no text in {error.encoding}"
    return ""


def _check_names(
    template: Template, variant: Variant, tools: toolchain.Toolchain, staging: Path
) -> None:
    libraries = (folder for folder, _ in template.libraries)
    programs = (each.path for each in (tools.cxx, tools.nvcc, tools.ccbin) if each)
    others = (template.source.parent, *template.include_dirs, *libraries, *programs)
    reasons = (unusable_name(each, _IN_BUILD_FILES) for each in others)
    for reason in (unusable_name(staging), *reasons):
        if reason:
            raise ToolchainError(
                f"{variant.name} cannot be compiled, because {reason}, which the build file that "
                "torch writes cannot hold. Use a directory with another name; JITSPARSE_CACHE_DIR "
                "names that of the cache."
            )


_BY_CTRL_C = (-signal.SIGINT, 128 + signal.SIGINT)
_STOPPED = "ninja: build stopped: interrupted by user"
"""ninja's return codes if Ctrl-C comes before it handles SIGINT, and what any version prints if
it comes later."""

_interrupted: WeakSet[threading.Thread] = WeakSet()
"""Threads whose builds must end."""


def interrupt(thread: threading.Thread) -> bool:
    """Stop the build of a thread, in which KeyboardInterrupt is then raised.

    Returns:
        Whether it was waiting for a program, which has been told to end. Where the system does not
        list a thread's programs, they end by themselves, and can only write to a dead builder's
        staging.
    """
    _interrupted.add(thread)
    programs = _children(Path(f"/proc/self/task/{thread.native_id}"))
    for program in programs:
        # ninja ends its compilers with itself, but waits for one that Ctrl-C did not stop.
        for each in (program, *_children(Path(f"/proc/{program}/task/{program}"))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGTERM)
    return bool(programs)


def _children(task: Path) -> list[int]:
    try:
        return [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        return []


def is_interrupted() -> bool:
    """Whether this thread's build has been told to end."""
    return threading.current_thread() in _interrupted


def _load(
    template: Template,
    variant: Variant,
    name: str,
    tools: toolchain.Toolchain,
    staging: Path,
    source: Path,
) -> tuple[str, bool]:
    """Run ``cpp_extension.load``; returns its and the compiler's output, and whether it failed."""
    flags = [*compile_flags(template.language, variant.target), *template.flags]
    cuda = template.language == "cuda"
    said: list[str] = []
    with extensions.prepared(tools, said, staging) as cpp_extension:
        # The versioner would call a second build of the same name "<name>_v1".
        cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(name, None)
        try:
            cpp_extension.load(
                name=name,
                sources=[str(source)],
                extra_cflags=[] if cuda else flags,
                extra_cuda_cflags=flags if cuda else [],
                extra_ldflags=[
                    *link_flags(template.language),
                    *template.link_flags,
                    *_cudart(tools, staging),
                ],
                extra_include_paths=[
                    str(template.source.parent),
                    *(str(directory) for directory in template.include_dirs),
                    *(str(directory) for directory, _ in template.libraries),
                ],
                build_directory=str(staging),
                with_cuda=cuda,
                is_python_module=False,
                verbose=False,
            )
        except OSError as error:
            # Mapping the new library is the last thing that load does. If it cannot be mapped here,
            # the build has not failed: it may have been built for another machine.
            if not (staging / f"{name}.so").is_file():
                if error.errno is not None:
                    raise  # from the system, before a compiler ran; failed mappings have no errno
                raise _nothing_built(variant, tools, error) from error
            said.append(f"not mapped here: {error}")
        except RuntimeError as error:
            # Ctrl-C on a terminal reaches ninja directly, maybe before the thread waiting here.
            ended = getattr(error.__cause__, "returncode", 0)
            if is_interrupted() or ended in _BY_CTRL_C or _STOPPED in str(error):
                raise KeyboardInterrupt from None
            return "\n".join([*said, _compiler_output(str(error), staging)]), True
        finally:
            cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(name, None)
    return "\n".join(said), False


def _nothing_built(variant: Variant, tools: toolchain.Toolchain, error: OSError) -> ToolchainError:
    """The error for a build that reports success but leaves no library."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        # Exit statuses are then lost, and Python takes each program for a success.
        return ToolchainError(
            f"{variant.name} cannot be compiled in this process: it ignores SIGCHLD, inherited or "
            "by signal.signal, so Python does not learn what became of the compiler. Set it to "
            "signal.SIG_DFL before the first use, or fill the cache before (jitsparse warmup)"
        )
    compiler = tools.cxx.path if tools.nvcc is None else tools.nvcc.path
    return ToolchainError(
        f"{variant.name} was not built, although the compiler reported no error: {error}. Make "
        f"room in the cache (JITSPARSE_CACHE_DIR), or see whether {compiler} is one (CXX, nvcc)"
    )


def _compiler_output(message: str, staging: Path) -> str:
    """The compiler's output, taken from ``load``'s message, with relative paths."""
    _, _, output = message.partition(": ")
    return (output or message).replace(f"{staging}/", "")


def _cudart(tools: toolchain.Toolchain, staging: Path) -> list[str]:
    """Linker flags for a CUDA runtime that torch's own flags do not find.

    torch looks for ``libcudart.so`` in ``lib64``, if there is one. pip's toolkit has its libraries
    in ``lib``, and its runtime package has only the name with a version.
    """
    if tools.cuda_home is None:
        return []
    for part in ("lib64", "lib"):
        folder = tools.cuda_home / part
        if (folder / "libcudart.so").exists():
            return [f"-L{folder}"]
        for library in sorted(folder.glob("libcudart.so.*")):
            (staging / "libcudart.so").symlink_to(library)
            return ["-L."]
    return []


def _sweep(staging: Path, keep: tuple[str, ...]) -> None:
    """Remove everything that the build left except its results."""
    for path in staging.iterdir():
        if path.name not in keep:
            files.remove(path)
