"""The public names, and the examples in their documentation."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

import jitsparse as js

PUBLIC = {
    *("ArgumentError", "BlockSparse", "BundleError", "CacheMiss", "CompileError"),
    *("CompilerNotFound", "ConfigError", "JitsparseError", "LaunchError", "Pattern"),
    *("PatternError", "PinError", "ToolchainError", "UnsupportedProblem", "UntrustedCache"),
    *("UnwritableCache", "cache_info", "clear_cache", "dds", "dsd", "explain", "first_use"),
    *("linear", "nn", "pin", "random", "sdd", "tune", "warmup"),
}


def test_all_is_what_is_promised() -> None:
    assert set(js.__all__) == PUBLIC
    assert js.__all__ == sorted(js.__all__)
    assert all(hasattr(js, name) for name in PUBLIC)


def test_completion_offers_what_is_public() -> None:
    offered = {name for name in dir(js) if not name.startswith("__")}
    assert offered == PUBLIC | {"errors", "jit"}
    assert all(hasattr(js, name) for name in offered)
    assert {"__version__", "__doc__"} <= set(dir(js))


def test_names_stay_functions_whatever_is_imported() -> None:
    """Three functions share their name with the module that defines them."""
    for name in ("jitsparse.explain", "jitsparse.tune", "jitsparse.warmup", "jitsparse.cli"):
        importlib.import_module(name)
    assert inspect.isfunction(js.explain)
    assert inspect.isfunction(js.tune)
    assert inspect.isfunction(js.warmup)


def test_errors_have_one_root() -> None:
    errors = [value for value in vars(js).values() if inspect.isclass(value)]
    errors = [value for value in errors if issubclass(value, Exception)]
    assert {error.__name__ for error in errors} == set(js.errors.__all__)
    assert all(issubclass(error, js.JitsparseError) for error in errors)
    assert issubclass(js.PatternError, ValueError)
    assert issubclass(js.ArgumentError, ValueError)
    assert issubclass(js.UnsupportedProblem, NotImplementedError)
    assert issubclass(js.ToolchainError, RuntimeError)


def test_everything_public_is_documented() -> None:
    for name in PUBLIC - {"nn"}:
        thing = getattr(js, name)
        assert inspect.getdoc(thing), name
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            explained = callable(value) or isinstance(value, (classmethod, property))
            if explained and not member.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{member}"


@pytest.mark.parametrize(
    "module",
    [
        *("", ".pattern", ".sparse", ".functional", ".nn.linear", ".nn.convert", ".explain"),
        *(".nn.moving", ".nn.patterns", ".nn.drop_and_grow", ".nn.ranks"),
        *(".tune", ".warmup", ".compilation"),
    ],
)
def test_examples_run(module: str) -> None:
    if module == ".sparse":
        pytest.importorskip("scipy")
    loaded = importlib.import_module(f"jitsparse{module}")
    # "jitsparse.explain" as an attribute is the function; the module is what is wanted.
    results = doctest.testmod(loaded, globs={})
    assert results.attempted > 0
    assert results.failed == 0
