"""Two processes that train together."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

END = """
# Threads of gloo that still run while the interpreter ends may abort the process.
import os
torch.distributed.barrier()
os._exit(0)
"""


def run_two_ranks(script: str, *arguments: str, where: Path) -> None:
    """Run a script in two processes, given the arguments, the path of a store and its rank; both
    have to succeed. It imports torch, and leaves the process group as it is."""
    command = [sys.executable, "-c", script + END, *arguments, str(where / "store")]
    logs = [where / f"{rank}.txt" for rank in range(2)]
    with logs[0].open("w") as first, logs[1].open("w") as second:
        ranks = [
            subprocess.Popen([*command, str(rank)], stderr=log)
            for rank, log in enumerate((first, second))
        ]
        try:
            # Where one fails the other waits for it for ever.
            deadline = time.monotonic() + 120
            while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
                if any(rank.poll() for rank in ranks):
                    break
                time.sleep(0.05)
        finally:
            codes = [rank.poll() for rank in ranks]
            for rank in ranks:
                rank.kill()
                rank.wait()
    assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
