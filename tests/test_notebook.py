"""The example notebook runs in a real kernel from an empty cache, and is kept without outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

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
