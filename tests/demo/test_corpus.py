from __future__ import annotations

from pathlib import Path

import pytest
import torch

from jitsparse.demo.corpus import VOCABULARY, load_corpus
from jitsparse.errors import JitsparseError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for i in range(20):
        # Every character of a file is its own, so that windows can be traced to files.
        (tmp_path / f"m{i:02}.py").write_text(chr(ord("A") + i) * 9_000)
    return tmp_path


def test_every_tenth_file_is_held_out_whole(root: Path) -> None:
    corpus = load_corpus(root)
    assert corpus.files == 20
    held_out = {chr(c) for c in corpus.held_out.unique().tolist()}
    assert held_out == {"J", "T"}
    assert not held_out & {chr(c) for c in corpus.train.unique().tolist()}
    assert corpus.train.numel() == 18 * 9_000


def test_bytes_beyond_ascii_are_one_character(root: Path) -> None:
    (root / "m00.py").write_bytes("é".encode() * 5_000)
    corpus = load_corpus(root)
    assert corpus.train[:10_000].tolist() == [VOCABULARY - 1] * 10_000


def test_targets_are_the_next_characters(root: Path) -> None:
    corpus = load_corpus(root)
    x, y = corpus.batch(4, 16, torch.Generator().manual_seed(0))
    assert x.shape == y.shape == (4, 16)
    assert torch.equal(x[:, 1:], y[:, :-1])
    again, _ = corpus.batch(4, 16, torch.Generator().manual_seed(0))
    assert torch.equal(x, again)


def test_held_out_batches_span_the_text(root: Path) -> None:
    batches = load_corpus(root).held_out_batches(8, 16, 4)
    assert [x.shape for x, _ in batches] == [(8, 16)] * 4
    assert {chr(c) for x, _ in batches for c in x.unique().tolist()} == {"J", "T"}


def test_the_standard_library_is_enough() -> None:
    corpus = load_corpus()
    assert corpus.train.numel() > 1_000_000
    assert corpus.train.min() >= 0
    assert corpus.train.max() < VOCABULARY


def test_too_little_text_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(JitsparseError, match=str(tmp_path)):
        load_corpus(tmp_path)
