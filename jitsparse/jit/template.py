"""Templates: what a variant is rendered from, and what that text depends on.

A template is a short Jinja file: constants, one include, one instantiation, one launcher. The
kernel body lives in headers, so that compiler errors point at real files and lines.

Jinja itself is imported only when something is rendered, which a cache hit never does.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

from jitsparse.errors import CompileError, ConfigError
from jitsparse.jit.variant import Variant

__all__ = ["Context", "Template", "headers", "own_headers", "render", "roots_of"]

Context = Mapping[str, "str | int | bool"]

# Declared ahead of the template's own text, which buys three things: the two symbols are exported
# although everything else is compiled hidden, so that two kernels mapped into one process never
# resolve each other's functions; a launcher of the wrong type is a compile error; and the
# declarations stand outside the template's line numbers.
PROLOGUE = """\
extern "C" __attribute__((visibility("default"))) int jitsparse_launch(const void* words);
extern "C" __attribute__((visibility("default"))) const char* jitsparse_error(int code);
#line 1 "{source}"
"""

_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*(include|include_next|import)\b[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)?', re.MULTILINE
)
_ASKED = re.compile(r'\b__has_include(?:_next)?\s*\(\s*(?:"([^"\n]+)"|<([^>\n]+)>)')
_OF_HEADERS = ("-I", "-isystem", "-iquote", "-idirafter", "-include", "-imacros", "--include-path")
_COMMENT = re.compile(r"\{#.*?#\}|/\*.*?\*/", re.DOTALL)
_PLACEHOLDER = re.compile(r"\{\{-?\s*(\w+)\s*-?\}\}")


@dataclass(frozen=True)
class Template:
    """A source file with holes, and how a variant fills them.

    Attributes:
        name: short name, for messages and records.
        source: the Jinja file. Rendered, it defines
            ``extern "C" int jitsparse_launch(const void*)``, which returns 0 on success, and
            ``extern "C" const char* jitsparse_error(int code)``.
        language: ``"c++"`` or ``"cuda"``.
        include_dirs: directories of its own headers. Every header included from them, directly or
            not, is part of the cache key.
        arguments: how many 64-bit arguments the launcher reads.
        context: maps a variant to the names that the file may use, with their values.
        libraries: directories of third-party headers (CUTLASS, Eigen), each with the version that
            stands for them in the cache key: they are not read.
        flags: for the compiler (``-lineinfo``), after those that all templates have; not for
            header directories.
        link_flags: for the linker (``-lcublas``).
    """

    name: str
    source: Path
    language: Literal["c++", "cuda"]
    include_dirs: tuple[Path, ...]
    arguments: int
    context: Callable[[Variant], Context]
    libraries: tuple[tuple[Path, str], ...] = ()
    flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.language not in ("c++", "cuda"):
            raise ConfigError(
                f"template {self.name!r}: language {self.language!r} is neither 'c++' nor 'cuda'."
            )
        if isinstance(self.include_dirs, (str, os.PathLike)):
            raise ConfigError(
                f"template {self.name!r}: include_dirs is a tuple of directories, got "
                f"{self.include_dirs!r}."
            )
        if type(self.arguments) is not int or self.arguments < 0:
            raise ConfigError(
                f"template {self.name!r}: arguments is how many words the launcher reads, got "
                f"{self.arguments!r}."
            )
        for name in ("flags", "link_flags"):
            flags = getattr(self, name)
            if type(flags) is not tuple or not all(isinstance(each, str) for each in flags):
                raise ConfigError(
                    f"template {self.name!r}: {name} is a tuple of texts, got {flags!r}."
                )
        hidden = next((each for each in self.flags if each.startswith(_OF_HEADERS)), None)
        if hidden is not None:
            raise ConfigError(
                f"template {self.name!r}: flag {hidden!r} names headers of which the cache key "
                "would not know: their directory belongs to include_dirs or libraries."
            )
        if type(self.libraries) is not tuple or not all(map(_is_library, self.libraries)):
            raise ConfigError(
                f"template {self.name!r}: libraries is a tuple of pairs, a directory and the "
                f"version of what is there, as ((Path('cutlass/include'), '4.2.0'),), got "
                f"{self.libraries!r}."
            )
        if type(self.include_dirs) is not tuple or not all(
            isinstance(path, Path) for path in (self.source, *self.include_dirs)
        ):  # strings are accepted as paths
            object.__setattr__(self, "source", Path(self.source))
            object.__setattr__(self, "include_dirs", tuple(map(Path, self.include_dirs)))

    @property
    def suffix(self) -> str:
        """File name extension of the rendered source."""
        return ".cu" if self.language == "cuda" else ".cpp"

    def text(self) -> str:
        """The template as written.

        Raises:
            ConfigError: the file cannot be read.
        """
        try:
            return self.source.read_text(encoding="utf-8-sig")  # without a byte order mark
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"template {self.name!r} cannot be read from {self.source}: {error}."
            ) from error


def _is_library(pair: object) -> bool:
    return (
        isinstance(pair, tuple)
        and len(pair) == 2
        and isinstance(pair[0], Path)
        and isinstance(pair[1], str)
    )


def render(template: Template, context: Context) -> str:
    """Source text of a template for one context.

    Raises:
        CompileError: the template has a syntax error or uses a name that the context lacks; the
            message points at the template's line.
    """
    import jinja2

    from jitsparse.jit.line_marks import with_line_marks

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=_in_cpp,
        loader=jinja2.FunctionLoader(_refuse_template),
    )
    written = template.text()
    long_values = "macro" in written or any("\n" in str(value) for value in context.values())
    text, lines = with_line_marks(written, environment, long_values=long_values)
    try:
        code = environment.compile(text, filename=str(template.source))
        compiled = jinja2.Template.from_code(environment, code, environment.make_globals(None))
        body = compiled.render(**context)
    except jinja2.TemplateSyntaxError as error:
        line = lines[min(error.lineno, len(lines)) - 1]
        raise _render_error(template, context, line, str(error.message)) from error
    except Exception as error:  # whatever the template's expressions raise
        line = lines[min(_stopped_at(template, error), len(lines)) - 1]
        kind = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
        raise _render_error(template, context, line, f"{kind}{error}") from error
    return PROLOGUE.format(source=_quoted(template.source)) + body


def _in_cpp(value: object) -> object:
    """The value of ``{{ name }}`` as written in C++."""
    return str(value).lower() if isinstance(value, bool) else value


def _refuse_template(name: str) -> NoReturn:
    raise ValueError(
        f"a template cannot include or extend {name!r}, of which the cache key would not know: put "
        "it into a header and write #include"
    )


def headers(template: Template, context: Context) -> dict[str, str]:
    """Own headers that a template includes, directly or through other headers.

    An include names an own header if it is found beside the including file, beside the template or
    in one of its ``include_dirs``; all others belong to its libraries or to the compiler, and are
    identified by their versions. Includes under a false ``#if`` count too, as do files tested with
    ``__has_include``: a superset is safe, a subset is not.

    Returns:
        A sorted mapping from each header's name, relative to its include directory (or as
        included), to its text, where bytes that are not UTF-8 are escaped (``surrogateescape``).

    Raises:
        CompileError: an include does not say which file it means: its name is computed, by a macro
            or by anything but a plain ``{{ name }}``, or is on another line.
    """
    return dict(sorted(own_headers(template, context).values()))


def roots_of(template: Template) -> list[str]:
    """Real paths of the directories that the compiler searches for own headers, in its order."""
    # Paths are plain strings here: Path.resolve alone was a fifth of a warm first use.
    beside = os.path.dirname(os.path.abspath(template.source))
    return [os.path.realpath(str(directory)) for directory in (beside, *template.include_dirs)]


def own_headers(template: Template, context: Context) -> dict[str, tuple[str, str]]:
    """The name and text of each header that :func:`headers` finds, by path."""
    found: dict[str, tuple[str, str]] = {}
    labels: set[str] = set()
    plain: dict[str, bool] = {}
    roots = roots_of(template)
    source = os.path.join(roots[0], os.path.basename(template.source))
    queue, seen = [(source, template.text())], {source}
    while queue:
        including, text = queue.pop()
        is_template = including == source
        for directive, quoted, name, at in _includes(text):
            if is_template:
                name = _PLACEHOLDER.sub(lambda m: str(context.get(m[1], m[0])), name)
            if not name or (is_template and ("{{" in name or "{%" in name)):
                line = text.count("\n", 0, at) + 1
                raise _unknown_include(template, including, line, directive, name)
            if is_template and name == f"kernel{template.suffix}":
                raise CompileError(
                    f"template {template.name!r} includes {name!r}, which is what its rendered "
                    "source is called: call the header something else",
                    source_path=including,
                )
            beside = (os.path.dirname(including),) if quoted else ()
            for directory in (*beside, *roots):
                path = _as_opened(directory, name, plain)
                if path not in seen and os.path.isfile(path):
                    with open(path, encoding="utf-8", errors="surrogateescape") as file:
                        content = file.read()
                    # An include directory may be below that of the template.
                    label = _unused(_relative(path, [*roots[1:], roots[0]], name), labels)
                    labels.add(label)
                    found[path] = label, content
                    queue.append((path, content))
                    seen.add(path)
                # include_next goes on to the next file of that name.
                if path in seen and directive != "include_next":
                    break
    return found


class _Include(NamedTuple):
    """An include directive, or a ``__has_include``, in a text.

    Attributes:
        directive: ``include`` or another one.
        quoted: whether the name is in ``""``.
        name: the file's name; empty if there is none.
        at: where the directive begins.
    """

    directive: str
    quoted: bool
    name: str
    at: int


def _includes(text: str) -> Iterator[_Include]:
    """Directives that include something.

    Those that name no file are skipped inside comments. Those that name one all count, since what
    looks like a comment may be in a string.
    """
    matches = list(_INCLUDE.finditer(text))
    found = {match.start(): match for match in matches if match[2] or match[3]}
    if len(found) < len(matches):
        bare = _COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), text)
        found |= {match.start(): match for match in _INCLUDE.finditer(bare)}
    for at, match in found.items():
        yield _Include(match[1], bool(match[2]), match[2] or match[3] or "", at)
    for match in _ASKED.finditer(text):
        yield _Include("__has_include", bool(match[1]), match[1] or match[2], match.start())


def _as_opened(directory: str, name: str, plain: dict[str, bool]) -> str:
    """The normalized path, or the real one where `..` after a link leads elsewhere.

    Args:
        directory, name: the directory, and the name included from it.
        plain: for each directory searched, whether `..` in it just goes up. Most headers share a
            few directories: asking again for each header took half the time of a key.
    """
    path = os.path.join(directory, name)
    normal = os.path.normpath(path)
    if ".." in path:
        above, normal_above = os.path.dirname(path), os.path.dirname(normal)
        if above not in plain:
            plain[above] = os.path.realpath(above) == os.path.realpath(normal_above)
        if not plain[above] and os.path.realpath(normal) != os.path.realpath(path):
            return os.path.realpath(path)
    return normal


def _unused(label: str, taken: set[str]) -> str:
    """A header's label, numbered if taken: several directories may have a file of that name."""
    numbers = itertools.count(2)
    name = label
    while name in taken:
        name = f"{label} ({next(numbers)})"
    return name


def _unknown_include(
    template: Template, including: str, line: int, directive: str, name: str
) -> CompileError:
    what = f"#{directive} of {name!r}" if name else f"#{directive}"
    return CompileError(
        f"template {template.name!r} cannot be compiled\n"
        f'  {including}:{line}: {what}: write a name in "" or <> on the same line, or in a '
        "template a plain {{ name }} between them: a header whose name is not known would not be "
        "part of the cache key, and what it was before an edit would run",
        source_path=including,
    )


def _relative(path: str, roots: list[str], fallback: str) -> str:
    for root in roots:
        if path.startswith(root + os.sep):
            return path[len(root) + 1 :]
    return fallback


def _quoted(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


def _stopped_at(template: Template, error: BaseException) -> int:
    """The line at which rendering stopped; Jinja rewrites the traceback to say so."""
    line, traceback = 1, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(template.source):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _render_error(template: Template, context: Context, line: int, reason: str) -> CompileError:
    names = ", ".join(sorted(context)) or "none"
    return CompileError(
        f"template {template.name!r} cannot be rendered\n"
        f"  {template.source}:{line}: {reason}\n"
        f"  names it may use: {names}",
        source_path=str(template.source),
    )
