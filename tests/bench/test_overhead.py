from __future__ import annotations

import json

import pytest

from jitsparse.bench import pattern_process


def test_patterns_are_timed_until_the_device_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    pattern_process.main("cpu")
    known, new = json.loads(capsys.readouterr().out)
    assert known > 0
    assert new > 0
