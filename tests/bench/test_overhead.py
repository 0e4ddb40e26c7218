from __future__ import annotations

import json

import pytest

from jitsparse.bench import pattern_process


def test_patterns_are_timed_until_the_device_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_process, "LAYOUTS", ((512, 32), (512, 16)))
    pattern_process.main("cpu")
    timed = json.loads(capsys.readouterr().out)
    assert len(timed) == len(pattern_process.LAYOUTS)
    assert all(whole > 0 and index_alone > 0 for whole, index_alone in timed)
