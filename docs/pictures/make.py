"""Make the README's pictures: run the programs, and draw what they showed.

    pip install -e '.[test]'
    python docs/pictures/make.py            # or some of them: python docs/pictures/make.py warmup

Nothing in a picture is written by hand. A terminal's bytes are recorded in a pseudo-terminal and
interpreted by a terminal emulator; a notebook's messages come from a Jupyter kernel. The runs have
a home directory of their own, with an empty cache. A first use is announced only if it takes longer
than a second, so on a quick machine a picture may have to wait for a machine that is busy.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from rich.console import Console
from rich.style import Style
from rich.syntax import Syntax
from rich.terminal_theme import TerminalTheme
from rich.text import Text

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from terminal import Terminal  # noqa: E402

COLUMNS = 112

COLOURS = [
    *((30, 34, 42), (240, 113, 120), (140, 200, 130), (230, 190, 110)),
    *((110, 170, 240), (200, 150, 230), (110, 200, 210), (215, 220, 228)),
]
THEME = TerminalTheme(COLOURS[0], COLOURS[7], COLOURS, [(130, 138, 150), *COLOURS[1:]])
"""Light on dark, within a border: to be read on light pages and on dark ones."""

FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's own, without fonts from the network: the width of every text is given anyway."""


# -- drawing ------------------------------------------------------------------------------------


def draw(name: str, title: str, lines: list[Text]) -> None:
    """Write lines as the picture of a name."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)
    for line in lines:
        console.print(line, no_wrap=True, crop=True)
    svg = console.export_svg(title=title, theme=THEME, code_format=FORMAT, unique_id=name)
    path = HERE / f"{name}.svg"
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


def shown(terminal: Terminal) -> list[Text]:
    """What a terminal shows, with its colours."""
    lines = []
    for row in range(terminal.screen.lines):
        text = Text(end="")
        cells = (terminal.screen.buffer[row][column] for column in range(COLUMNS))
        for style, run in groupby(cells, key=style_of):
            text.append("".join(cell.data for cell in run), style)
        text.rstrip()
        lines.append(text)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def style_of(cell: Any) -> Style:
    """How a cell of pyte's looks, in rich's words."""
    name = cell.fg.replace("bright", "bright_").replace("brown", "yellow")
    if re.fullmatch("[0-9a-f]{6}", name):
        name = f"#{name}"
    return Style(color=name, bold=cell.bold, italic=cell.italics)


# -- running ------------------------------------------------------------------------------------


def environment(home: Path) -> dict[str, str]:
    """What a program needs, and nothing of who runs this."""
    return {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }


def shell(home: Path, lines: int) -> Terminal:
    """A shell that knows ``python`` and ``jitsparse``, whether they are installed or not."""
    (home / "rc").write_text(
        f'PS1="ready"\npython() {{ "{sys.executable}" -q "$@"; }}\n'
        f'jitsparse() {{ "{sys.executable}" -m jitsparse "$@"; }}\n'
    )
    bash = ["bash", "--noprofile", "--rcfile", str(home / "rc"), "-i"]
    terminal = Terminal(bash, environment(home), columns=COLUMNS, lines=lines)
    terminal.read_until(lambda seen: seen and seen[-1] == "ready")
    # What a shell says of a terminal that it does not control is no part of the session.
    terminal.type("PS1='$ '; clear")
    terminal.read_until(lambda seen: seen == ["$"])
    return terminal


def type_and_wait(terminal: Terminal, line: str, prompt: str) -> None:
    """Type a line and wait until the program asks for the next."""
    terminal.type(line)
    terminal.read_until(lambda seen: seen[-1] == prompt and any(line in each for each in seen))


LAYER = "layer = js.nn.BlockSparseLinear(512, 2048, block_size=32, density=0.25)"


def first_use(home: Path) -> None:
    """A first use in a terminal, while it lasts, and what stays; it has been compiled before."""
    call = "y = layer(torch.randn(64, 512))"
    program = f"import torch, jitsparse as js\n{LAYER}\n{call}\njs.clear_cache()"
    quiet = {**environment(home), "JITSPARSE_LOG": "quiet"}
    subprocess.run([sys.executable, "-c", program], env=quiet, check=True)
    with closing(shell(home, 12)) as terminal:
        type_and_wait(terminal, "python", ">>>")
        type_and_wait(terminal, "import torch, jitsparse as js", ">>>")
        type_and_wait(terminal, LAYER, ">>>")
        terminal.type(call)
        terminal.read_until(lambda seen: re.search(r", 1\.[2-9] s \(", seen[-1]))
        draw("first-use-live", "a first use, after a second", shown(terminal))
        terminal.read_until(lambda seen: seen[-1] == ">>>")
        draw("first-use", "and when it is done", shown(terminal))


def warmup(home: Path) -> None:
    """``jitsparse warmup``, half way."""
    with closing(shell(home, 10)) as terminal:
        terminal.type("jitsparse warmup --device cpu --op dsd --dtype f32,bf16 --block-size 32,64")

        def half_way(seen: list[str]) -> bool:
            match = re.search(r" (\d+)/(\d+) ", seen[-1])
            return bool(match) and 2 * int(match[1]) >= int(match[2])

        terminal.read_until(half_way)
        draw("warmup-live", "jitsparse warmup, half way", shown(terminal))
        terminal.read_until(lambda seen: seen[-1] == "$")
        draw("warmup", "and when it is done", shown(terminal))


def notebook(home: Path) -> None:
    """A first use in a Jupyter kernel: while it lasts, and what the notebook keeps."""
    cells = [
        f"import torch, jitsparse as js\n{LAYER}",
        "y = layer(torch.randn(64, 512))",
    ]
    shows: list[str] = []

    class Recorder(NotebookClient):  # type: ignore[misc]
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] in ("display_data", "update_display_data"):
                shows.append(msg["content"]["data"]["text/plain"])
            return super().process_message(msg, cell, cell_index)

    document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    os.environ.update(environment(home))
    resources = {"metadata": {"path": str(home)}}
    Recorder(document, timeout=300, kernel_name="python3", resources=resources).execute()
    if len(shows) < 2:
        raise RuntimeError("the first use took less than a second; try again")
    kept = [out["data"]["text/plain"] for out in document.cells[1].outputs]
    draw("notebook-live", "the same in a notebook", written(cells, [shows[-2]]))
    draw("notebook", "and what the notebook keeps", written(cells, kept))


def written(cells: list[str], outputs: list[str]) -> list[Text]:
    """Cells as a notebook shows them, the outputs below the last one."""
    lines: list[Text] = []
    for number, source in enumerate(cells, 1):
        code = Syntax(source, "python", theme="ansi_dark").highlight(source)
        for index, line in enumerate(code.split("\n")):
            if line.plain:
                prompt = f"In [{number}]: " if index == 0 else " " * 8
                lines.append(Text.assemble((prompt, "bright_blue"), line, end=""))
        lines.append(Text(end=""))
    lines += [Text(" " * 8 + line, end="") for output in outputs for line in output.split("\n")]
    return lines


PICTURES: dict[str, Callable[[Path], None]] = {
    "first-use": first_use,
    "warmup": warmup,
    "notebook": notebook,
}


def main(names: list[str]) -> None:
    """Make the pictures of the names, or all."""
    unknown = set(names) - set(PICTURES)
    if unknown:
        sys.exit(f"no such picture: {', '.join(unknown)}; there are {', '.join(PICTURES)}")
    for name in names or PICTURES:
        with tempfile.TemporaryDirectory() as home:
            PICTURES[name](Path(home))


if __name__ == "__main__":
    main(sys.argv[1:])
