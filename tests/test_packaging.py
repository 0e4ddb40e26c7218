"""What is installed: every template, header and tuned table, and nothing that was compiled."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import jitsparse
from jitsparse.jit import tuned

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jitsparse"
SOURCES = (".h", ".cuh", ".jinja")
COMPILED = {".so", ".o", ".a", ".cubin", ".ptx", ".pyd", ".dylib"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a compiler in reach: any attempt to use one fails the build."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(out),
            str(ROOT),
        ],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "", "CC": "/nonexistent", "CXX": "/nonexistent", "HOME": str(out)},
    )
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_the_tuned_tables(wheel: Path) -> None:
    """Those of the sources, each named as its machine is looked up."""
    wanted = {path.relative_to(ROOT).as_posix() for path in (PACKAGE / "tuned").glob("*.json")}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("jitsparse/tuned/")}
        assert held == wanted
        for name in held:
            table = json.loads(archive.read(name))
            assert table["format"] == tuned.FORMAT
            assert Path(name).stem == tuned._slug(table["machine"])


def test_wheel_holds_the_licence(wheel: Path) -> None:
    text = (ROOT / "docs" / "LICENSE").read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("licenses/docs/LICENSE"))
        assert archive.read(name) == text


def test_wheel_is_pure(wheel: Path) -> None:
    assert wheel.name == f"jitsparse-{jitsparse.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if Path(name).suffix in COMPILED]


def test_wheel_holds_every_module_template_and_header(wheel: Path) -> None:
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".typed", *SOURCES)
    }
    assert any(name.endswith(".cu.jinja") for name in wanted)
    assert any(name.endswith(".cpp.jinja") for name in wanted)
    assert "jitsparse/csrc/abi.h" in wanted
    with zipfile.ZipFile(wheel) as archive:
        assert wanted <= set(archive.namelist())


def test_installed_wheel_renders_and_names_its_command(wheel: Path, tmp_path: Path) -> None:
    """The unpacked wheel, away from the checkout, finds its own templates and headers."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        points = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "jitsparse = jitsparse.cli:main" in archive.read(points).decode()
    program = (
        "import jitsparse, torch\n"
        "from jitsparse.jit import cpu_target\n"
        "from jitsparse.kernels import registry\n"
        f"assert jitsparse.__file__.startswith({str(tmp_path)!r}), jitsparse.__file__\n"
        "for target in (cpu_target(), 'sm80', 'sm90a'):\n"
        "    for variant in registry.default_variants(target):\n"
        "        template = registry.template_of(variant)\n"
        "        for path in (template.source, *template.include_dirs):\n"
        f"            assert str(path).startswith({str(tmp_path)!r}) and path.exists(), path\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
