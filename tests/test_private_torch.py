"""What of torch is private and used nevertheless stands in docs/architecture.md, all of it and no
more, and is there in the torch that is installed."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import jitsparse

PACKAGE = Path(jitsparse.__file__).parent
DOCS = PACKAGE.parent / "docs" / "architecture.md"


def names_in(source: str) -> Iterator[str]:
    """Full names of what a module takes from torch, by import, attribute or getattr."""
    tree = ast.parse(source)
    known = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for each in node.names:
                known[each.asname or each.name] = f"{node.module}.{each.name}"
                yield f"{node.module}.{each.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := full_name(node, known)):
            yield name
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            holder, attribute = node.args[:2]
            if isinstance(attribute, ast.Constant) and (name := full_name(holder, known)):
                yield f"{name}.{attribute.value}"


def full_name(node: ast.expr, known: dict[str, str]) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in known:
        return None
    return ".".join([known[node.id], *reversed(parts)])


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def private_names() -> set[str]:
    every = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in names_in(path.read_text())
        if is_private(name)
    }
    return {name for name in every if not any(other.startswith(f"{name}.") for other in every)}


def test_names_are_found_however_they_are_written() -> None:
    source = """
import torch
from torch._a import b
from torch.autograd import forward_ad
torch._C._d(torch.nn, forward_ad._level)
e = getattr(torch._C, "_f", None)
torch.__version__
"""
    found = {name for name in names_in(source) if is_private(name)}
    assert found == {
        *("torch._a.b", "torch._C._d", "torch._C._f", "torch._C"),
        "torch.autograd.forward_ad._level",
    }


def test_the_list_is_complete() -> None:
    section = DOCS.read_text().partition("### What of torch is private\n")[2].partition("\n#")[0]
    listed = re.findall(r"`(torch\.[\w.]+)`", section)
    assert {name for name in listed if is_private(name)} == private_names()


def test_all_are_there() -> None:
    missing = []
    for name in private_names():
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            missing.append(name)
    # Which torch without CUDA has not, and is not asked for.
    of_cuda = {
        *("torch._C._cuda_getDevice", "torch._C._cuda_getCurrentRawStream"),
        "torch._C._dynamo.guards._empty_strided_cuda",
        "torch.cuda._sleep",
    }
    # Needs Triton.
    of_triton = {name for name in missing if name.startswith("torch.sparse._triton_ops")}
    assert not set(missing) - of_cuda - of_triton
