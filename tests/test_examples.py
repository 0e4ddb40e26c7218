"""The scripts in examples/, which are run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_blocks_that_move_are_where_they_are_needed(tmp_path: Path) -> None:
    script = EXAMPLES / "move_blocks.py"
    run = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    outcome = {
        where: (float(loss), int(found))
        for where, loss, found in re.findall(r"blocks (.*): .* loss (\S+), (\d+)%", run.stdout)
    }
    loss_of_chance, found_by_chance = outcome["stay"]
    loss_at_random, found_at_random = outcome["grow at random"]
    loss, found = outcome["by gradient"]
    assert found_by_chance < found_at_random < 60 <= 80 < found
    assert loss < loss_of_chance / 10
    assert loss < loss_at_random < loss_of_chance
