"""Fitting the cost model to measured times; needs SciPy.

Run it on the output of the bench, in one file or several, and look at the change::

    jitsparse bench --suite hopper --section choice --json > times.json
    python -m jitsparse.bench.fitting times.json
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jitsparse.bench.choice import FITTED
from jitsparse.jit import Variant
from jitsparse.kernels import cost, price_table
from jitsparse.kernels.problem import Problem, product_problem

__all__ = ["fit", "main", "problem_of"]

_Sample = tuple[list[float], float]
"""Parts, and how much of the time they are to explain, both divided by the time."""

_FAITH = 1.0
"""Weight of the prices of similar kinds: for each part, that of a sample in which the part takes
its largest share of the time. From 0.5 to 2 the choice is equally good."""


def main(*paths: str) -> None:
    """Fit the prices of ``costs.json`` to the times in all of the files, for each GPU to its own.

    Prices of GPUs, and of groups on a GPU, that were not timed stay.
    """
    files = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    gpus = json.loads(price_table.TABLE.read_text(encoding="utf-8"))["gpus"]
    names = ("device", "commit", "command")
    by_gpu: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for file in files:
        by_gpu[price_table.gpu_of(file["measured"]["device"])].append(file)
    if others := by_gpu.pop(None, []):
        devices = ", ".join(file["measured"]["device"] for file in others)
        raise SystemExit(
            f"times of {devices}: there are prices of {', '.join(price_table.GPUS)} alone"
        )
    for gpu, timed in by_gpu.items():
        tables = [table for file in timed for table in file["tables"]]
        rows = [row for each in tables if each["section"] == "choice" for row in each["rows"]]
        measured = [{name: file["measured"].get(name) for name in names} for file in timed]
        prices = fit(rows)
        if not prices:
            raise SystemExit(f"no time of the {gpu} is one that prices are fitted to")
        table = gpus.setdefault(gpu, {"measured": {}, "prices": {}})
        timed_groups = {price_table.group_of(kind) for kind in prices}
        table["measured"] |= {group: measured for group in sorted(timed_groups)}
        kept = {
            kind: row
            for kind, row in table["prices"].items()
            if price_table.group_of(kind) not in timed_groups
        }
        table["prices"] = dict(sorted({**kept, **prices}.items()))
    price_table.TABLE.write_text(_formatted(gpus), encoding="utf-8")


def _formatted(gpus: Mapping[str, Mapping[str, Any]]) -> str:
    """As JSON, one line per kind of kernel."""
    tables = []
    for gpu, table in gpus.items():
        prices = (
            f"        {json.dumps(kind)}: {json.dumps(row)}"
            for kind, row in table["prices"].items()
        )
        measured = f'      "measured": {json.dumps(table["measured"])}'
        tables.append(
            f'    "{gpu}": {{\n{measured},\n      "prices": {{\n'
            + ",\n".join(prices)
            + "\n      }\n    }"
        )
    every = ",\n".join(tables)
    return f'{{\n  "parts": {json.dumps(cost.PARTS)},\n  "gpus": {{\n{every}\n  }}\n}}\n'


def fit(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Fit prices of the parts, none negative, to the times less the extras.

    It minimises the squares of relative errors. A kind is timed in 5 to 200 products, too few for
    eight prices. So kinds that differ little are fitted together first, and each may then deviate
    from those prices as far as its own times require (a ridge). Cross-validated on the fitted half,
    and on the other, the choice was within 5 % of the best in 0.849 and 0.889 of the cases, without
    in 0.841 and 0.867 (028bcf0).

    Args:
        rows: of the section ``choice``; those of the held-out half are ignored.

    Returns:
        kind of kernel to a price for each of :data:`~jitsparse.kernels.cost.PARTS`.
    """
    alone: dict[str, list[_Sample]] = defaultdict(list)
    together: dict[str, list[_Sample]] = defaultdict(list)
    for row in rows:
        problem, variant = problem_of(row), Variant.parse(row["variant"])
        known = cost.knows(problem, variant)
        if row["half"] == FITTED and known:
            amounts = cost.parts(problem, variant)
            relative = [part / row["us"] for part in amounts]
            rest = 1 - sum(cost.extras(problem, variant, amounts).values()) / row["us"]
            kind = cost.kind(problem, variant)
            for samples, name in ((alone, kind), (together, _alike(kind))):
                samples[name].append((relative, rest))
    first = {name: _prices(samples) for name, samples in together.items()}
    return {
        kind: [float(f"{price:.3g}") for price in _prices(samples, first[_alike(kind)])]
        for kind, samples in sorted(alone.items())
    }


def _alike(kind: str) -> str:
    """The common name of kinds that differ little.

    Those of ``thin`` may differ in the height of a block and in whether an SM has two CTAs at most,
    others in the layout of the dense operand and in whether block columns are condensed, those of
    ``mma`` and ``fma`` in the width of a tile, too.
    """
    group = price_table.group_of(kind)
    if group in price_table.OF_THEIR_OWN:
        alike = _alike_sdd if group.endswith(".sdd") else _alike
        return f"{group}.{alike(kind.removeprefix(f'{group}.'))}"
    family, *others = kind.split(".")
    if family == "thin":
        kept = [each for each in others[1:] if each != "two"]
    else:
        kept = [each for each in others if each not in ("along", "across", "condensed")]
    if family in ("mma", "fma"):
        kept = [each for each in kept if not each.startswith("n")]
    return ".".join((family, *kept))


def _alike_sdd(kind: str) -> str:
    """Kinds of an sdd may differ in the layouts of operands and in the side that is gathered, those
    of ``simt`` in the tile, too, and those of ``wgmma`` in the block."""
    family, size, *others = kind.split(".")
    kept = [each for each in others if each not in ("along", "across", "either", "rows", "cols")]
    return ".".join((family, *([] if family in ("simt", "wgmma") else [size]), *kept))


def _prices(samples: Sequence[_Sample], expected: Sequence[float] | None = None) -> list[float]:
    """Prices that explain the samples best and deviate little from the expected ones."""
    import numpy as np
    from scipy.optimize import nnls

    parts, rest = (np.asarray(each) for each in zip(*samples, strict=True))
    # nnls needs columns of similar magnitude.
    scale = np.maximum(np.max(parts, axis=0), 1e-30)
    parts = parts / scale
    if expected is not None:
        parts = np.vstack([parts, _FAITH * np.eye(scale.size)])
        rest = np.concatenate([rest, _FAITH * scale * np.asarray(expected)])
    found, _ = nnls(parts, rest)
    # What is dropped takes no more than a millionth of any sample.
    return [float(price) for price in np.where(found < 1e-6, 0, found) / scale]


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
