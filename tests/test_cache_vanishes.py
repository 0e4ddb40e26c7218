"""The whole cache is deleted under running processes: what they have goes on, the rest is rebuilt.

Moments are drawn over the length of a first use; ``JITSPARSE_TEST_TRIALS`` and
``JITSPARSE_TEST_SEED`` as in `test_kill_any_moment.py`.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import toykernel
from zygote import Zygote, use

from jitsparse.jit import Cache, load
from jitsparse.jit.inventory import verify

TRIALS = int(os.environ.get("JITSPARSE_TEST_TRIALS", "6"))
SEED = int(os.environ.get("JITSPARSE_TEST_SEED", "20"))

pytestmark = pytest.mark.timeout(300 + 4 * TRIALS)


def test_a_kernel_outlives_its_entry(
    tmp_path: Path, cache_dir: Path, forget: Callable[[], None]
) -> None:
    template = toykernel.write(tmp_path)
    kernel = load(template, toykernel.variant())
    shutil.rmtree(cache_dir)
    assert toykernel.run(kernel)
    assert load(template, toykernel.variant()) is kernel
    assert toykernel.run(load(template, toykernel.variant(3)))
    forget()
    again = load(template, toykernel.variant())
    assert again.entry.fresh
    assert toykernel.run(again)


def test_deleted_at_any_moment_of_a_build(tmp_path: Path) -> None:
    """An answer, or an error that says what has become of the build; and then an answer."""
    toykernel.write(tmp_path)
    cache, chance, found = tmp_path / "cache", random.Random(SEED), Counter[str]()
    with Zygote() as zygote:
        # The first answer of a zygote comes when it has imported everything.
        for number in range(2):
            started = time.perf_counter()
            value = zygote.run(use, folder=tmp_path, cache=tmp_path / f"first{number}").value
            seconds = time.perf_counter() - started
            assert value["fresh"]
        for _ in range(TRIALS):
            child = zygote.fork(use, folder=tmp_path, cache=cache)
            time.sleep(chance.uniform(0, seconds))
            delete(cache)
            outcome = child.wait()
            assert outcome.status == 0, outcome
            value = outcome.value
            if "error" in value:
                assert value["error"] in ("ToolchainError", "UnwritableCache"), value
                assert str(cache) in value["text"]
            else:
                assert value["right"]
            found[value.get("error", "right")] += 1
            assert zygote.run(use, folder=tmp_path, cache=cache).value["right"]
            assert toykernel.staged(cache) == [] if (cache / "v1" / "staging").exists() else True
            assert [each.defect for each in verify(Cache(cache))] == [""]
            delete(cache)
    print(f"seed {SEED}, first use {seconds:.3f} s: {dict(found)}")


def delete(cache: Path) -> None:
    """As rm -rf, which goes on while a builder writes; until nothing is left."""
    while cache.exists():
        shutil.rmtree(cache, ignore_errors=True)
