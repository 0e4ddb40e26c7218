"""Damaged and hostile entries and bundles: what is not what was published is never mapped.

The library that is planted writes a file when it is mapped, so that a single mistake shows. Trials
are drawn from a seed. There are 2,000 entries and 1,000 bundles; ``JITSPARSE_TEST_TRIALS=10000``
runs so many of each.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import toykernel

from jitsparse.errors import BundleError, CacheMiss
from jitsparse.jit import Cache, Template, compile_only, config, kernel, key, load
from jitsparse.jit.exporting import export
from jitsparse.jit.importing import import_bundle
from jitsparse.jit.inventory import verify

ENTRIES = int(os.environ.get("JITSPARSE_TEST_TRIALS", "2000"))
BUNDLES = int(os.environ.get("JITSPARSE_TEST_TRIALS", "1000"))

HOSTILE = """\
#include <cstdio>
#include <cstdlib>
__attribute__((constructor)) static void planted() {
  if (std::FILE* file = std::fopen("%s", "a")) std::fclose(file);
}
extern "C" int jitsparse_launch(const void*) { return 0; }
extern "C" const char* jitsparse_error(int) { return ""; }
"""


@dataclass
class Prey:
    """A good entry, and what is done to copies of it."""

    template: Template
    good: Path
    hostile: bytes
    sentinel: Path
    root: Path
    chance: random.Random

    @property
    def entry(self) -> Path:
        """Directory of the copy that is damaged."""
        return self.root / "v1" / self.good.name

    def meta(self) -> dict[str, Any]:
        """Content of the good entry's meta.json."""
        return json.loads((self.good / "meta.json").read_text())  # type: ignore[no-any-return]

    def write(self, name: str, content: bytes) -> None:
        """A file of the copy."""
        (self.entry / name).write_bytes(content)

    def plant(self) -> None:
        """The hostile library, at the good one's place."""
        self.write("kernel.so", self.hostile)

    def forge(self, **changes: Any) -> None:
        """The hostile library, and metadata that speak for it but for what is changed."""
        self.plant()
        meta = self.meta()
        meta["library_bytes"] = len(self.hostile)
        meta["library_sha256"] = hashlib.sha256(self.hostile).hexdigest()
        self.write("meta.json", json.dumps({**meta, **changes}).encode())


@pytest.fixture
def prey(tmp_path: Path) -> Iterator[Prey]:
    template = toykernel.write(tmp_path)
    with config.override(cache_dir=tmp_path / "good"):
        good = compile_only(template, toykernel.variant()).path
    sentinel = tmp_path / "executed"
    (tmp_path / "hostile.cpp").write_text(HOSTILE % sentinel)
    subprocess.run(
        ["c++", "-shared", "-fPIC", "-o", tmp_path / "hostile.so", tmp_path / "hostile.cpp"],
        check=True,
    )
    hostile = (tmp_path / "hostile.so").read_bytes()
    (tmp_path / "root" / "v1").mkdir(parents=True, mode=0o700)
    yield Prey(template, good, hostile, sentinel, tmp_path / "root", random.Random(20))
    assert not sentinel.exists(), "a hostile library was executed"


def cut(prey: Prey) -> None:
    name = prey.chance.choice(["kernel.so", "meta.json"])
    content = (prey.good / name).read_bytes()
    prey.write(name, content[: prey.chance.randrange(len(content))])


def flip_library(prey: Prey) -> None:
    content = bytearray((prey.good / "kernel.so").read_bytes())
    content[prey.chance.randrange(len(content))] ^= 1 << prey.chance.randrange(8)
    prey.write("kernel.so", bytes(content))


def flip_meta(prey: Prey) -> None:
    """The library is hostile too, so that the metadata alone stand in its way."""
    prey.forge(library_sha256="0" * 64)
    content = bytearray((prey.entry / "meta.json").read_bytes())
    for _ in range(prey.chance.randint(1, 4)):
        content[prey.chance.randrange(len(content))] ^= 1 << prey.chance.randrange(8)
    prey.write("meta.json", bytes(content))


def swap_library(prey: Prey) -> None:
    prey.plant()
    if prey.chance.random() < 0.5:
        # Of the size that was published.
        size = (prey.good / "kernel.so").stat().st_size
        prey.write("kernel.so", prey.hostile[:size] + bytes(max(0, size - len(prey.hostile))))


def swap_entry(prey: Prey) -> None:
    """A whole and consistent entry of another variant or key, under this one's name."""
    meta = prey.meta()
    label = prey.chance.choice(sorted(meta["fields"]))
    others = [
        each for each in ("axpy.omp.generic.f32.s9", 7, "", []) if each != meta["fields"][label]
    ]
    fields = {**meta["fields"], label: prey.chance.choice(others)}
    prey.forge(fields=fields, key=key.digest(fields))


def lie_about_the_key(prey: Prey) -> None:
    """The fields of another compiler's library under the key that is sought, or the reverse."""
    meta = prey.meta()
    wrong = prey.chance.choice([{"key": "0" * 64}, {"key": meta["key"][:16] + "0" * 48}])
    if prey.chance.random() < 0.5:
        wrong = {"fields": {**meta["fields"], "compiler": "c++: of somebody else"}}
    prey.forge(**wrong)


VALUES: list[Any] = [
    *(None, True, -1, 0, 1.5, 10**30, 1e308, "", "x", "../../../etc/passwd", "\x1b[2J", "\ud800"),
    *([], {}, [1], {"variant": {}}, {"variant": "../x"}, "__import__('os').abort()"),
]


def hostile_meta(prey: Prey) -> None:
    """Values of other types and ranges, at any place that matters."""
    label = prey.chance.choice(["key", "fields", "library_bytes", "library_sha256"])
    prey.forge(**{label: prey.chance.choice(VALUES)})


def hostile_json(prey: Prey) -> None:
    """What a JSON reader may choke on, or what only a careless one would run."""
    prey.plant()
    text = prey.chance.choice(
        [
            "[" * 100_000,
            '{"fields":' * 50_000,
            '{"created": ' + "9" * 5000 + "}",
            json.dumps({**prey.meta(), "created": float("nan")}),
            json.dumps({**prey.meta(), "created": float("inf")}),
            json.dumps(prey.meta()) + " " * (1 << 20),
            "\x00" * 1000,
            "\ufeff" + json.dumps(prey.meta()),
            "cos\nsystem\n(S'touch executed'\ntR.",
            "null",
            '"text"',
            "[1, 2]",
            "",
        ]
    )
    prey.write("meta.json", text.encode())


def link(prey: Prey) -> None:
    """Symbolic links in the place of a file, or of the entry."""
    name = prey.chance.choice(["kernel.so", "meta.json", ""])
    if name:
        elsewhere = prey.root / f"elsewhere-{name}"
        shutil.copy(prey.good / name, elsewhere)
        (prey.entry / name).unlink()
        (prey.entry / name).symlink_to(prey.chance.choice([elsewhere, "/dev/zero", "loop"]))
        return
    shutil.rmtree(prey.entry)
    prey.entry.symlink_to(prey.chance.choice([prey.good, Path("/dev"), Path("nowhere")]))


def not_a_file(prey: Prey) -> None:
    """Pipes, on which a reader would wait for ever, directories, and nothing."""
    name = prey.chance.choice(["kernel.so", "meta.json"])
    (prey.entry / name).unlink()
    if name == "kernel.so":
        meta = {**prey.meta(), "library_bytes": 0}
        prey.write("meta.json", json.dumps(meta).encode())
    make: Callable[[Path], None] = prey.chance.choice([os.mkfifo, os.mkdir, lambda path: None])
    make(prey.entry / name)


def writable_by_others(prey: Prey) -> None:
    prey.forge()
    path = prey.entry / prey.chance.choice(["", "kernel.so", "meta.json"])
    path.chmod(prey.chance.choice([0o777, 0o770, 0o702, 0o720]))


def wrong_owner(prey: Prey) -> None:
    """Only root can give files away; others see the mode alone."""
    if os.getuid() != 0:
        return writable_by_others(prey)
    prey.forge()
    path = prey.entry / prey.chance.choice(["", "kernel.so", "meta.json"])
    os.chown(path, prey.chance.choice([1, 1000, 65534]), -1)


def an_entry_that_is_a_file(prey: Prey) -> None:
    shutil.rmtree(prey.entry)
    prey.entry.write_bytes(prey.hostile)


ATTACKS = [
    *(cut, flip_library, flip_meta, swap_library, swap_entry, lie_about_the_key, hostile_meta),
    *(hostile_json, link, not_a_file, writable_by_others, wrong_owner, an_entry_that_is_a_file),
]


def test_entries(prey: Prey, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the compiler's version in the key; every attack is also seen by verify."""
    cache = Cache(prey.root)
    good = (prey.good / "kernel.so").read_bytes()
    good_key = prey.meta()["key"]
    done: Counter[str] = Counter()
    monkeypatch.setattr(kernel, "_mapped", {})
    for trial in range(ENTRIES):
        attack = ATTACKS[trial % len(ATTACKS)]
        shutil.copytree(prey.good, prey.entry)
        attack(prey)
        assert cache.find(prey.entry.name, good_key) is None, attack
        with config.override(cache_dir=prey.root, jit="off"):
            with pytest.raises(CacheMiss):
                load(prey.template, toykernel.variant())
        (verdict,) = verify(cache)
        assert verdict.defect, attack
        assert verdict.defect.isprintable(), attack
        list(cache.entries())
        done[attack.__name__] += 1
        if prey.entry.is_symlink() or prey.entry.is_file():
            prey.entry.unlink()
        else:
            shutil.rmtree(prey.entry)
    assert (prey.good / "kernel.so").read_bytes() == good
    assert sum(done.values()) == ENTRIES
    assert len(done) == len(ATTACKS)


def test_the_planted_library_would_have_been_seen(prey: Prey) -> None:
    """The trap works: with metadata that speak for it, by its owner, the library is code."""
    shutil.copytree(prey.good, prey.entry)
    prey.forge()
    with config.override(cache_dir=prey.root, jit="off"):
        load(prey.template, toykernel.variant(), allow_build=False)
    assert prey.sentinel.exists()
    prey.sentinel.unlink()


def tar_of(files: dict[str, bytes], change: Callable[[tarfile.TarInfo], None]) -> bytes:
    """A tar archive, each of whose headers was changed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            change(info)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def files_of(bundle: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]


def tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def attempt(prey: Prey, content: bytes) -> tuple[str, ...]:
    """Import a bundle; what it brought is sound, and nothing else has changed."""
    bundle = prey.root / "bundle.tar"
    bundle.write_bytes(content)
    cache = Cache(prey.root / "cache")
    outside = {path for path in tree(prey.root.parent) if not path.is_relative_to(cache.root)}
    try:
        done = import_bundle(cache, bundle)
        reasons = tuple(reason for _, reason in done.rejected)
    except BundleError as error:
        reasons = (str(error),)
    assert not [each for each in verify(cache) if each.defect]
    for library in cache.root.rglob("kernel.so"):
        assert library.read_bytes() == (prey.good / "kernel.so").read_bytes()
    assert {p for p in tree(prey.root.parent) if not p.is_relative_to(cache.root)} == outside
    assert list((cache.root / "v1" / "staging").iterdir()) == []
    shutil.rmtree(cache.root)
    return reasons


@pytest.fixture
def bundle(prey: Prey) -> bytes:
    path = prey.root / "good.tar"
    export(Cache(prey.good.parent.parent), path)
    content = path.read_bytes()
    path.unlink()
    assert attempt(prey, content) == ()
    return content


def test_bundles_with_flipped_bits_and_lost_ends(prey: Prey, bundle: bytes) -> None:
    refused = 0
    for trial in range(BUNDLES):
        content = bytearray(bundle)
        if trial % 2:
            content = content[: prey.chance.randrange(len(content))]
        else:
            for _ in range(prey.chance.randint(1, 8)):
                content[prey.chance.randrange(len(content))] ^= 1 << prey.chance.randrange(8)
        refused += bool(attempt(prey, bytes(content)))
    # What is left are flips in the padding and in fields that nobody reads, and cuts in the end.
    assert refused > 0.9 * BUNDLES


def test_bundles_with_hostile_headers(prey: Prey, bundle: bytes) -> None:
    files = files_of(bundle)
    name = next(name for name in files if name.endswith("kernel.so"))
    elsewhere = prey.root.parent / "escaped"

    def only(**changes: Any) -> Callable[[tarfile.TarInfo], None]:
        def change(info: tarfile.TarInfo) -> None:
            if info.name == name:
                for label, value in changes.items():
                    setattr(info, label, value)

        return change

    attacks = [
        only(type=tarfile.SYMTYPE, linkname=str(elsewhere), size=0),
        only(type=tarfile.LNKTYPE, linkname="/etc/passwd", size=0),
        only(type=tarfile.CHRTYPE, devmajor=1, devminor=5, size=0),
        only(type=tarfile.BLKTYPE, size=0),
        only(type=tarfile.FIFOTYPE, size=0),
        only(type=tarfile.DIRTYPE, size=0),
        only(type=tarfile.CONTTYPE),
        only(type=b"S"),
        only(name=str(elsewhere)),
        only(name="../../escaped"),
        only(name=name.replace("kernel.so", "../../../escaped")),
        only(name=name + "/.."),
        only(name="./" + name),
        only(name=name.replace("kernel.so", "sitecustomize.py")),
        only(name="v1/" + "a" * 300 + "/kernel.so"),
        only(name="v1/é/kernel.so"),
        only(pax_headers={"path": str(elsewhere)}),
        only(pax_headers={"size": "-1024"}),
        only(pax_headers={"GNU.sparse.map": "0,99999999999", "GNU.sparse.size": "99999999999"}),
    ]
    for change in attacks:
        assert attempt(prey, tar_of(files, change)), change
        assert not elsewhere.exists()


def test_bundles_with_hostile_manifests(prey: Prey, bundle: bytes) -> None:
    files = files_of(bundle)
    manifest = json.loads(files["bundle.json"])
    name = next(name for name in files if name.endswith("kernel.so"))
    entry = name.rpartition("/")[0]
    listed = manifest["files"]

    def with_(path: str, size: Any = 1, sha256: Any = "0" * 64) -> dict[str, Any]:
        return {"format": 1, "files": {**listed, path: {"bytes": size, "sha256": sha256}}}

    manifests: list[Any] = [
        *(None, [], 1, {}, {"format": 1}, {"format": 1, "files": []}, {"format": 1, "files": {}}),
        {**manifest, "format": "1"},
        *(with_(path) for path in ("/etc/passwd", "../x", f"{entry}/../x", f"{entry}/x.py")),
        *(with_(path) for path in ("tuned/../x.json", "tuned/m/x.json", "v1/x-0/meta.json")),
        *(with_(name, size) for size in (-1, 0, 1e3, True, "1", None, 10**12)),
        *(with_(name, len(files[name]), digest) for digest in (None, 0, "", "0" * 64, "0" * 63)),
    ]
    for each in manifests:
        content = {**files, "bundle.json": json.dumps(each).encode()}
        assert attempt(prey, tar_of(content, lambda info: None)), each
    deep = {**files, "bundle.json": b"[" * 100_000}
    assert attempt(prey, tar_of(deep, lambda info: None))


def test_a_bundle_whose_library_is_another(prey: Prey, bundle: bytes) -> None:
    """The manifest agrees, the entry's own metadata do not; and the reverse."""
    files = files_of(bundle)
    name = next(name for name in files if name.endswith("kernel.so"))
    manifest = json.loads(files["bundle.json"])
    assert attempt(prey, tar_of({**files, name: prey.hostile}, lambda info: None))
    manifest["files"][name] = {
        "bytes": len(prey.hostile),
        "sha256": hashlib.sha256(prey.hostile).hexdigest(),
    }
    agreed = {**files, name: prey.hostile, "bundle.json": json.dumps(manifest).encode()}
    (reason,) = attempt(prey, tar_of(agreed, lambda info: None))
    assert "kernel.so has" in reason


def test_nothing_unpickles_or_evaluates() -> None:
    """Neither word occurs in the package as something that is called or imported."""
    import ast

    import jitsparse

    for path in Path(jitsparse.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            assert not {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & set(names), path
