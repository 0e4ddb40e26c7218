"""The compilers of this machine: where they are, and which versions they report.

Nothing here starts a process on a warm first use: the version text of a compiler is remembered in
the cache under its resolved path, size and modification time, and asked for again when these
change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jitsparse.errors import CompilerNotFound, ToolchainError
from jitsparse.jit import config, files, forks

__all__ = ["Compiler", "Memo", "Toolchain", "find", "ninja_directory"]

# Compiler wrappers: replacing the compiler behind them leaves them as they were, so what they
# answered before says nothing.
_WRAPPERS = ("ccache", "sccache", "distcc", "icecc")

USUAL_CUDA_HOME = Path("/usr/local/cuda")


class Memo:
    """Version texts that compilers reported before, in JSON files beside the entries.

    Args:
        files: searched in order; the last one is written to.
        shared: whether several users write to it.
    """

    def __init__(self, files: tuple[Path, ...], *, shared: bool = False) -> None:
        self._files = files
        self._shared = shared

    def read(self, identity: str) -> str | None:
        """What the compiler of this identity answered, if it was asked before."""
        for file in self._files:
            answer = self._content(file).get(identity)
            if isinstance(answer, str):
                return answer
        return None

    def write(self, identity: str, answer: str) -> None:
        """Keep an answer. Best effort: a lost one costs the next process some milliseconds."""
        file = self._files[-1]
        content = {**self._content(file), identity: answer}
        with contextlib.suppress(OSError):
            files.make_directories(file.parent.parent, file.parent, shared=self._shared)
            files.write(file, json.dumps(content, indent=1))

    @staticmethod
    def _content(file: Path) -> dict[str, object]:
        try:
            content = json.loads(files.read(file))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


@dataclass(frozen=True)
class Compiler:
    """One compiler program.

    Attributes:
        path: the program as found.
    """

    path: Path

    def version(self, memo: Memo) -> str:
        """The compiler's version text, without the name it was called by and without paths.

        Args:
            memo: the answers that earlier processes got.

        Raises:
            ToolchainError: the program does not run.
        """
        resolved = Path(os.path.realpath(self.path))
        if resolved.name in _WRAPPERS:
            return self.ask()
        stat = resolved.stat()
        identity = f"{resolved} {stat.st_size} {stat.st_mtime_ns}"
        version = memo.read(identity)
        if version is None:
            version, script = self.ask(), _script(resolved)
            if script is not None:
                # Never remembered: it may start another compiler next time, and add flags.
                return f"{version}\nscript {hashlib.sha256(script).hexdigest()}"
            memo.write(identity, version)
        return version

    def header_directories(self) -> list[Path]:
        """Where it looks for headers by default; empty if it does not say."""
        command = [str(self.path), "-E", "-v", "-x", "c++", os.devnull]
        try:
            answer = forks.programs().run(command, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return []
        lines = os.fsdecode(answer.stderr).splitlines()
        return [Path(line.strip()) for line in lines if line.startswith(" /")]

    def ask(self) -> str:
        """The version text from the compiler itself, whatever it reported before.

        Raises:
            ToolchainError: the program does not run.
        """
        try:
            answer = forks.programs().run(
                [str(self.path), "--version"],
                capture_output=True,
                encoding="utf-8",
                errors="replace",  # clang prints directories, which may hold any bytes
                check=True,
                timeout=60,
                env={**os.environ, "LC_ALL": "C"},
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ToolchainError(f"the compiler {self.path} does not run: {error}.") from error
        # gcc begins with the name it was called by: "c++ (Debian 12.2.0-14) 12.2.0".
        text = re.sub(r"^\S+ (?=\()", "", answer.stdout.strip())
        return "\n".join(line for line in text.splitlines() if not line.startswith("InstalledDir"))


def _script(program: Path) -> bytes | None:
    """The text of a program that is a script, or None. One that may not be read could not run."""
    try:
        with program.open("rb") as file:
            return file.read() if file.read(2) == b"#!" else None
    except PermissionError:
        return None


@dataclass(frozen=True)
class Toolchain:
    """The compilers for templates of one language.

    Attributes:
        cxx: the C++ compiler; it also links.
        cuda_home: root of the CUDA toolkit, None for C++.
        nvcc: the CUDA compiler, None for C++.
        ccbin: the host compiler that torch passes to nvcc from ``CC``, or None.
        nvcc_settings: environment variables that change how nvcc is called.
    """

    cxx: Compiler
    cuda_home: Path | None = None
    nvcc: Compiler | None = None
    ccbin: Compiler | None = None
    nvcc_settings: tuple[str, ...] = ()

    def version(self, memo: Memo) -> str:
        """Version text of every compiler that takes part, for the cache key.

        The environment's settings for nvcc are part of it: they change what is built, as another
        nvcc would.
        """
        parts = (("nvcc", self.nvcc), ("ccbin", self.ccbin), ("c++", self.cxx))
        versions = [f"{name}: {each.version(memo)}" for name, each in parts if each]
        return "\n".join([*versions, *self.nvcc_settings])

    def header_directories(self) -> list[Path]:
        """Directories of the headers that belong to the compilers, as they report them."""
        found = [] if self.cuda_home is None else [self.cuda_home]
        for each in filter(None, (self.cxx, self.ccbin)):
            found += each.header_directories()
        return found


def find(language: Literal["c++", "cuda"]) -> Toolchain:
    """The compilers for a language.

    Raises:
        ToolchainError: one is missing, or ``CXX`` is not a program. The message lists every place
            that was searched.
    """
    cxx = _find_cxx()
    if language == "c++":
        return Toolchain(cxx)
    home = _find_cuda_home()
    settings = config.get()
    ccbin = shutil.which(settings.cc) if settings.cc else None
    return Toolchain(
        cxx,
        home,
        Compiler(home / "bin" / "nvcc"),
        Compiler(Path(ccbin)) if ccbin else None,
        settings.nvcc,
    )


def ninja_directory() -> Path | None:
    """Directory to put on PATH so that ``ninja`` is found, or None if it is on PATH already.

    A notebook kernel runs the interpreter of a virtual environment whose ``bin`` is not on PATH,
    and torch looks for ninja nowhere else.

    Raises:
        CompilerNotFound: there is no ninja.
    """
    if shutil.which("ninja"):
        return None
    searched = ["PATH"]
    # An interpreter embedded in another program may not know its own path.
    candidates = [Path(sys.executable).parent] if sys.executable else []
    try:
        import ninja
    except ImportError:
        searched.append("the Python package 'ninja' (not installed)")
    else:
        candidates.insert(0, Path(ninja.BIN_DIR))
    for directory in candidates:
        if shutil.which("ninja", path=str(directory)):
            return directory
        searched.append(str(directory))
    raise CompilerNotFound(
        f"ninja is needed to compile kernels and was not found. Searched: {'; '.join(searched)}. "
        "Install it with: pip install ninja"
    )


def _find_cxx() -> Compiler:
    asked = config.get().cxx
    # Without CXX torch calls "c++"; the other name is for systems that lack this link.
    names = [asked] if asked else ["c++", "g++"]
    for name in names:
        path = shutil.which(name)
        if path:
            return Compiler(Path(os.path.abspath(path)))
    searched = f"PATH={os.environ.get('PATH', '')}"
    if asked:
        # Not CompilerNotFound, after which calls run on plain torch: a wrong setting is not a
        # machine without a compiler.
        raise ToolchainError(
            f"CXX={asked!r} is not the name or path of a program. It takes one program, without "
            f"arguments; a name is searched for in {searched}. Install that program, or unset CXX "
            f"to use the system's compiler, or set it to a script that runs a compiler with "
            "arguments."
        )
    raise CompilerNotFound(
        f"no C++ compiler was found. Searched for {', '.join(names)} in {searched}. Install one "
        "(Debian, Ubuntu: apt install g++; conda: conda install -c conda-forge gxx) or set CXX to "
        "the name or path of one program."
    )


def _find_cuda_home() -> Path:
    searched: list[str] = []
    for origin, home in _cuda_home_candidates():
        searched.append(f"{origin} ({home})")
        # A bare wrapper script on PATH has no headers beside it and is not a toolkit's root.
        if (home / "bin" / "nvcc").is_file() and (home / "include" / "cuda_runtime.h").is_file():
            return home
    raise ToolchainError(
        "no CUDA toolkit (bin/nvcc and include/cuda_runtime.h) was found. Searched: "
        f"{'; '.join(searched) or 'nothing: no candidate'}. Install the CUDA toolkit, or "
        "pip install nvidia-cuda-nvcc, or set CUDA_HOME to the root of a toolkit."
    )


def _cuda_home_candidates() -> Iterator[tuple[str, Path]]:
    """Places where a toolkit may be, best first: those that torch knows, then pip's packages."""
    for home in config.get().cuda_home:
        yield "CUDA_HOME or CUDA_PATH", home
    on_path = shutil.which("nvcc")
    if on_path:
        yield "nvcc on PATH", Path(os.path.realpath(on_path)).parent.parent
    else:
        yield "nvcc on PATH", Path("none found")
    yield "the usual place", USUAL_CUDA_HOME
    for entry in sys.path:
        root = Path(entry or ".") / "nvidia"
        for home in (*sorted(root.glob("cu[0-9]*"), reverse=True), root / "cuda_nvcc"):
            if home.is_dir():
                yield "pip's nvidia packages", home
