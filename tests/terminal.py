"""A program in a pseudo-terminal, and what a person in front of it would see.

pyte emulates the terminal. The tests of the first-use line use it, and docs/pictures/make.py.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

import pyte

PATIENCE = 120.0
"""Seconds until something that was to be seen counts as missing."""


class Terminal:
    """A program and its terminal.

    Args:
        command: the program and its arguments.
        environment: all of its environment but the size of the terminal.
        columns: of the terminal.
        lines: of the terminal.
        stdout: where the program's stdout goes; by default to the terminal, as stderr does.

    Attributes:
        screen: what the terminal shows.
        raw: every byte that the program wrote to it.
        process: the program.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        columns: int = 100,
        lines: int = 12,
        stdout: int | None = None,
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            # A shell wants the terminal for itself.
            start_new_session=True,
            env={**environment, "COLUMNS": str(columns), "LINES": str(lines)},
        )
        os.close(slave)

    @property
    def lines(self) -> list[str]:
        """The lines that are not empty."""
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def type(self, line: str) -> None:
        """Type a line and press the return key."""
        os.write(self._master, f"{line}\n".encode())

    def read_until(self, seen: Callable[[list[str]], object]) -> None:
        """Show what the program writes until the lines satisfy a condition."""
        deadline = time.monotonic() + PATIENCE
        while not seen(self.lines):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not seen within {PATIENCE:.0f} s: {self.lines}")
            self._read()

    def finish(self) -> list[str]:
        """The lines that the program leaves behind; it has to succeed."""
        deadline = time.monotonic() + PATIENCE
        while self._read():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no end within {PATIENCE:.0f} s: {self.lines}")
        if self.process.wait(PATIENCE):
            raise RuntimeError(f"exit code {self.process.returncode}: {self.lines}")
        return self.lines

    def close(self) -> None:
        """End the program if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        os.close(self._master)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)
