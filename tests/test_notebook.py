"""In a real kernel: the example notebook from an empty cache, and the line of a first use.

The example is kept without outputs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import toykernel

from jitsparse.jit import Cache

nbformat = pytest.importorskip("nbformat")
NotebookClient = pytest.importorskip("nbclient").NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_use.ipynb"


def test_stored_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


def test_runs_from_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("JITSPARSE_CACHE_DIR", str(cache))
    monkeypatch.setenv("JITSPARSE_LOG", "info")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    # The notebook checks itself with assertions; here only that it did what it says it does.
    assert list(Cache(cache).entries())
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert any("image/png" in out.get("data", {}) for out in outputs)
    assert not any(out.output_type == "error" for out in outputs)


VARIANT = "axpy.omp.generic.f32.s2"

# No widgets, whatever is installed. The compiler is released when the line has been redrawn twice.
FIRST_USE = """\
import sys
sys.modules["ipywidgets"] = None
sys.path.insert(0, {tests!r})
import toykernel
from jitsparse.jit import live, load
from pathlib import Path

redrawn = []
update = live._Notebook._publish
def counted(self, *, update_=update, update=True):
    update_(self, update=update)
    redrawn.append(update)
    if len(redrawn) == 3:
        Path({folder!r}, "go").touch()
live._Notebook._publish = counted

template = toykernel.template({folder!r})
print("before")
print(toykernel.run(load(template, toykernel.variant(2))))
"""


def first_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch, log: str, before: str
) -> tuple[list[Any], list[Any]]:
    """A first use in a kernel: the outputs of its cell, and the messages about displayed data."""
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("JITSPARSE_CACHE_DIR", str(folder / ".cache" / "jitsparse"))
    monkeypatch.setenv("JITSPARSE_LOG", log)
    toykernel.write(folder)
    held, _ = toykernel.compiler(folder / "held", before=before)
    monkeypatch.setenv("CXX", str(held))
    source = FIRST_USE.format(tests=str(Path(__file__).parent), folder=str(folder))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    messages: list[Any] = []

    class Recorder(NotebookClient):  # type: ignore[misc,valid-type]
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            messages.append(msg)
            return super().process_message(msg, cell, cell_index)

    resources = {"metadata": {"path": str(folder)}}
    Recorder(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    about = [m for m in messages if m["msg_type"] in ("display_data", "update_display_data")]
    return notebook.cells[0].outputs, about


def test_a_live_line_below_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = f'until [ -e "{tmp_path / "go"}" ]; do sleep 0.05; done'
    outputs, messages = first_use(tmp_path, monkeypatch, "info", held)
    first, *updates = messages
    assert first["msg_type"] == "display_data"
    assert {m["msg_type"] for m in updates} == {"update_display_data"}
    # One output, in a form that every front end has, in the cell that waits.
    assert len({m["content"]["transient"]["display_id"] for m in messages}) == 1
    assert all(set(m["content"]["data"]) == {"text/plain"} for m in messages)
    *live, stays = [m["content"]["data"]["text/plain"] for m in messages]
    where = r"\(kept in ~/\.cache/jitsparse\)"
    shown = [
        re.fullmatch(rf"jitsparse: compiling {re.escape(VARIANT)}, (\d+\.\d) s {where}", line)
        for line in live
    ]
    seconds = [float(match[1]) for match in shown if match]
    assert len(seconds) == len(live) >= 3
    assert seconds[0] >= 1.0
    assert sorted(set(seconds)) == seconds
    assert re.fullmatch(rf"jitsparse: compiled {re.escape(VARIANT)} in \d+\.\d s {where}", stays)
    # What the notebook keeps: the one line between what the cell printed.
    assert [out.get("text") or out["data"]["text/plain"] for out in outputs] == [
        "before\n",
        stays,
        "True\n",
    ]


def test_quiet_means_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, messages = first_use(tmp_path, monkeypatch, "quiet", "sleep 1.5")
    assert messages == []
    assert {out.name for out in outputs} == {"stdout"}
    assert "".join(out.text for out in outputs) == "before\nTrue\n"
