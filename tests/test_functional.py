"""The operations on the CPU against float64, and the judgement of their arguments."""

from __future__ import annotations

import cases
import pytest


@pytest.mark.parametrize("variant", cases.VARIANTS, ids=str)
def test_products_are_right(variant: cases.Variant) -> None:
    for seed, situation in enumerate(cases.SITUATIONS):
        try:
            cases.run(variant, situation, "cpu", seed)
        except Exception as error:
            raise AssertionError(f"in situation {situation}") from error
