"""Fitting the cost model to measured times; needs SciPy.

Run it on what the bench printed, and look at the change::

    jitsparse bench --suite hopper --section choice --json > times.json
    python -m jitsparse.bench.fitting times.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jitsparse.bench.choice import FITTED
from jitsparse.jit import Variant
from jitsparse.kernels import cost
from jitsparse.kernels.cuda import PICKED
from jitsparse.kernels.problem import Problem, product_problem

__all__ = ["fit", "main", "problem_of"]


def main(path: str) -> None:
    """Replace ``costs.json`` by what fits the times in a file."""
    measured = json.loads(Path(path).read_text(encoding="utf-8"))
    (table,) = (each for each in measured["tables"] if each["section"] == "choice")
    prices = fit(table["rows"])
    rows = ",\n".join(f"    {json.dumps(kind)}: {json.dumps(row)}" for kind, row in prices.items())
    facts = {name: measured["measured"].get(name) for name in ("device", "commit", "command")}
    cost.TABLE.write_text(
        f'{{\n  "measured": {json.dumps(facts)},\n  "parts": {json.dumps(cost.PARTS)},\n'
        f'  "prices": {{\n{rows}\n  }}\n}}\n',
        encoding="utf-8",
    )


def fit(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Prices of the parts that explain best what extras leave of the times: least squares of the
    relative errors, none of them negative.

    Args:
        rows: of the section ``choice``; those of the held-out half are not looked at.

    Returns:
        kind of kernel to a price for each of :data:`~jitsparse.kernels.cost.PARTS`.
    """
    import numpy as np
    from scipy.optimize import nnls

    samples: dict[str, list[tuple[list[float], float]]] = {}
    for row in rows:
        problem, variant = problem_of(row), Variant.parse(row["variant"])
        known = cost.covers(problem, variant.target) and variant.family in cost.FAMILIES
        known = known and not cost.wasteful(problem, variant)
        # What is picked has the prices of what is not, see jitsparse/kernels/cost.py.
        if row["half"] == FITTED and known and PICKED not in variant.knobs:
            amounts = cost.parts(problem, variant)
            relative = [part / row["us"] for part in amounts]
            rest = 1 - sum(cost.extras(problem, variant, amounts).values()) / row["us"]
            samples.setdefault(cost.kind(problem, variant), []).append((relative, rest))
    prices = {}
    for kind, times in sorted(samples.items()):
        parts, rest = (np.asarray(each) for each in zip(*times, strict=True))
        # nnls wants columns of like size.
        scale = np.maximum(np.max(parts, axis=0), 1e-30)
        found, _ = nnls(parts / scale, rest)
        prices[kind] = [float(f"{price:.3g}") for price in found / scale]
    return prices


def problem_of(row: dict[str, Any]) -> Problem:
    """The problem of a row, its sizes not rounded."""
    m, n, k = (int(side) for side in (row["size"].split("x") * 3)[:3])
    rows, cols = (int(side) for side in row["block"].split("x"))
    problem = product_problem(
        row["op"], "cuda", row["dtype"], (rows, cols), row["layout"], (m, n, k), row["density"]
    )
    return replace(problem, nnz=row["stored"], profile=int(row["profile"], 16))


if __name__ == "__main__":
    main(*sys.argv[1:])
