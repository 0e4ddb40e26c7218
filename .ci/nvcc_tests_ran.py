"""Fail unless the tests marked nvcc really ran: a skipped compile check would pass unseen.

    nvcc_tests_ran.py JUNIT_XML... COLLECTED

COLLECTED is the output of ``pytest -m nvcc --collect-only -qq``: a line ``file: count`` a file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

*reports, collected = (Path(argument) for argument in sys.argv[1:])
lines = [line.rsplit(":", 1) for line in collected.read_text().splitlines() if ": " in line]
expected = {Path(name).with_suffix("").as_posix().replace("/", "."): int(n) for name, n in lines}
if not expected:
    sys.exit("nvcc is installed, but no test is marked nvcc")

skipped_for_nvcc, passed = [], 0
for case in (case for each in reports for case in ElementTree.parse(each).iter("testcase")):
    module = case.get("classname", "")
    if not any(module == name or module.startswith(f"{name}.") for name in expected):
        continue
    skip = case.find("skipped")
    if skip is None:
        passed += 1
    elif "nvcc" in skip.get("message", ""):
        skipped_for_nvcc.append(f"{module}::{case.get('name')}: {skip.get('message')}")
if skipped_for_nvcc:
    sys.exit("nvcc is installed, but these tests did not use it:\n" + "\n".join(skipped_for_nvcc))
if passed < sum(expected.values()):
    sys.exit(
        f"{sum(expected.values())} tests need nvcc, but only {passed} of their files' tests ran"
    )
print(f"{sum(expected.values())} tests that need nvcc ran")
