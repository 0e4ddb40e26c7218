"""Where the nonzero blocks of a matrix are.

>>> import torch
>>> from jitsparse import Pattern
>>> pattern = Pattern.from_mask(torch.eye(3, dtype=torch.bool), block_size=32)
>>> print(pattern)
Pattern(shape=(96, 96), block_size=(32, 32), nnz_blocks=3, density=33.3%, device=cpu)
#..
.#.
..#
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from jitsparse import indexing, restoring
from jitsparse.checks import (
    as_block_size,
    as_blocks,
    as_count,
    as_shape,
    check_alike,
    check_coordinates,
    check_entries,
    check_form,
    check_generator,
    check_range,
    grid_of,
    is_dense,
    is_fake,
    is_readable,
    kind_of,
)
from jitsparse.display import character_map, plot
from jitsparse.drawing import draw
from jitsparse.errors import PatternError
from jitsparse.layout import IndexLayout, div_up
from jitsparse.traits import attach_traits, measure, pack, profile_by, transposed
from jitsparse.transforms import outside_of_transforms

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Pattern", "compressed"]


class Pattern:
    """The positions of the stored blocks of a block-sparse matrix; immutable.

    Args:
        shape: ``(rows, cols)`` of the matrix in elements. Need not be a multiple of the block: the
            last block row and column then reach past the matrix and hold zeros there.
        block_size: an int or a pair ``(block_rows, block_cols)``, each one of 8, 16, 32, 64, 128.
        crow_indices: ``(R + 1,)`` int32 or int64, where each of the ``R = ceil(rows / block_rows)``
            block rows begins in ``col_indices``, as in torch's BSR.
        col_indices: ``(nnz_blocks,)`` of the same dtype and on the same device: the block column of
            each block, strictly increasing within a block row.

    Indices are stored as int32 (int64 ones are converted; int32 ones are kept, not copied, and must
    not be written to afterwards).
    Construction reads the indices on the host, to check them, to measure what the choice of a
    kernel depends on, and for a GPU to compute the orders in which kernels walk the blocks
    (:mod:`jitsparse.indexing`); later uses read nothing.

    Two patterns are equal if they store the same blocks of the same matrix on the same device;
    comparing patterns on a GPU therefore waits for it, hashing one does not.

    Raises:
        PatternError: if the indices do not describe a pattern, or the block size is not supported.

    Example:
        >>> import torch, jitsparse as js
        >>> crow = torch.tensor([0, 1, 3])
        >>> col = torch.tensor([1, 0, 1])
        >>> js.Pattern((64, 64), 32, crow, col).density
        0.75
    """

    shape: tuple[int, int]
    block_size: tuple[int, int]
    crow_indices: Tensor
    col_indices: Tensor
    values_shape: tuple[int, int, int]
    """``(nnz_blocks, block_rows, block_cols)``, of the values of a matrix on this pattern."""
    index: Tensor
    """Every order in which kernels walk the blocks, packed (:mod:`jitsparse.layout`)."""
    _host: indexing.HostIndices | None
    """Host copy of the indices of a pattern on a GPU, unless they could not be read."""
    traits: int
    """What the pattern tells the choice of a kernel (:mod:`jitsparse.traits`); 0 if nothing."""

    def __init__(
        self,
        shape: Sequence[int],
        block_size: int | Sequence[int],
        crow_indices: Tensor,
        col_indices: Tensor,
    ) -> None:
        size = as_shape(shape)
        block = as_block_size(block_size)
        check_form(size, block, crow_indices, col_indices)
        read = indexing.read(crow_indices, col_indices)
        if read is not None or not (crow_indices.is_meta or is_fake(crow_indices)):
            check_entries(grid_of(size, block)[1], *(read or (crow_indices, col_indices)))
        self._store(size, block, crow_indices, col_indices, host=read)

    @classmethod
    def _trusted(
        cls,
        shape: tuple[int, int],
        block_size: tuple[int, int],
        crow: Tensor,
        col: Tensor,
        traits: int | None = None,
        host: indexing.HostIndices | None = None,
    ) -> Pattern:
        """A pattern whose indices are known to be valid.

        Given its traits and a host copy of the indices, nothing is read on the host.
        """
        pattern = cls.__new__(cls)
        pattern._store(shape, block_size, crow, col, traits, host)
        return pattern

    def _store(
        self,
        shape: tuple[int, int],
        block_size: tuple[int, int],
        crow: Tensor,
        col: Tensor,
        traits: int | None = None,
        host: indexing.HostIndices | None = None,
    ) -> None:
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
            # Training may use the pattern later, and autograd cannot save inference tensors.
            with torch.inference_mode(False):
                crow, col = (each.clone() if each.is_inference() else each for each in (crow, col))
                return self._store(shape, block_size, crow, col, traits, host)
        crow = crow.detach().to(torch.int32).contiguous()
        col = col.detach().to(torch.int32).contiguous()
        fields = self.__dict__
        fields["shape"] = shape
        fields["block_size"] = block_size
        fields["crow_indices"] = crow
        fields["col_indices"] = col
        fields["values_shape"] = (col.shape[0], *block_size)
        host = indexing.read(crow, col) if host is None else host
        if host is not None:
            host = host[0].to(torch.int32).contiguous(), host[1].to(torch.int32).contiguous()
        fields["_host"] = host if crow.is_cuda else None
        cols = div_up(shape[1], block_size[1])
        fields["index"], facts = indexing.index_of(crow, col, cols, block_size, host)
        if crow.is_cuda and is_readable(crow):
            indexing.wait(crow.device)
        fields["traits"] = self._measure(facts) if traits is None else traits
        attach_traits(self.index, self.traits)

    def _measure(self, facts: list[int] | None) -> int:
        """The traits, from ``facts`` if known; 0 where the indices cannot be read.

        Even their number may be unknown there.
        """
        if not is_readable(self.col_indices):
            return 0
        nnz = self.nnz_blocks
        if not nnz:
            return pack(*self.shape, nnz)
        if facts is None:
            profile = measure(self._rows, self.col_indices, self.shape, self.block_size)
        else:
            profile = profile_by(facts, nnz, self.shape, self.block_size)
        return pack(*self.shape, nnz, profile)

    # -- construction ---------------------------------------------------------------------------

    @classmethod
    def from_mask(
        cls,
        mask: Tensor,
        block_size: int | Sequence[int],
        shape: Sequence[int] | None = None,
    ) -> Pattern:
        """Pattern of the true entries of a mask with one entry per block.

        Args:
            mask: ``(R, C)`` bool.
            block_size: an int or a pair.
            shape: of the matrix in elements; by default whole blocks, ``(R * block_rows, ...)``.

        Raises:
            PatternError: if the mask is not a bool matrix, does not fit the shape, or has no data.

        Example:
            >>> import torch, jitsparse as js
            >>> js.Pattern.from_mask(torch.tensor([[True, False], [True, True]]), 32).shape
            (64, 64)
        """
        block = as_block_size(block_size)
        if not is_dense(mask):
            raise PatternError(f"a block mask is a Tensor, got {kind_of(mask)}")
        if mask.dim() != 2 or mask.dtype is not torch.bool:
            raise PatternError(
                f"a block mask is a 2-d bool tensor with one entry a block, got shape "
                f"{tuple(mask.shape)} and dtype {mask.dtype}"
            )
        size = (
            (mask.shape[0] * block[0], mask.shape[1] * block[1])
            if shape is None
            else as_shape(shape)
        )
        grid = grid_of(size, block)
        if tuple(mask.shape) != grid:
            raise PatternError(
                f"a matrix of shape {size} has {grid[0]} x {grid[1]} blocks of size {block}, "
                f"got a mask of shape {tuple(mask.shape)}"
            )
        if mask.is_meta:
            raise PatternError(
                "a block mask on the meta device has no data that says where blocks are; make the "
                "pattern of a mask that has, and move it: Pattern.from_mask(...).to('meta')"
            )
        return cls._trusted(size, block, *compressed(mask.flatten().nonzero()[:, 0], grid))

    @classmethod
    def from_indices(
        cls,
        row_indices: Tensor,
        col_indices: Tensor,
        block_size: int | Sequence[int],
        shape: Sequence[int],
    ) -> Pattern:
        """Pattern of the blocks at given coordinates, in any order.

        Args:
            row_indices, col_indices: ``(nnz_blocks,)`` int32 or int64 on one device: the block row
                and the block column of each block.
            block_size: an int or a pair.
            shape: ``(rows, cols)`` of the matrix in elements.

        Raises:
            PatternError: if the coordinates are not such tensors, lie outside the matrix or name a
                block twice, or shape or block size is illegal.

        Example:
            >>> import torch, jitsparse as js
            >>> rows, cols = torch.tensor([2, 0, 1]), torch.tensor([0, 1, 1])
            >>> js.Pattern.from_indices(rows, cols, 32, (96, 64)).crow_indices.tolist()
            [0, 1, 2, 3]
        """
        size, block = as_shape(shape), as_block_size(block_size)
        grid = grid_of(size, block)
        check_coordinates(row_indices, col_indices, grid)
        positions = (row_indices.long() * grid[1] + col_indices).sort().values
        crow, col = compressed(positions, grid)
        return cls(size, block, crow, col)

    @classmethod
    def random(
        cls,
        shape: Sequence[int],
        block_size: int | Sequence[int],
        density: float,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> Pattern:
        """Pattern of ``round(density * R * C)`` blocks, all choices equally likely.

        Args:
            shape: ``(rows, cols)`` of the matrix in elements.
            block_size: an int or a pair.
            density: fraction of the blocks that are stored, 0 to 1.
            generator: source of randomness; the blocks are drawn on its device.
            device: of the pattern; by default torch's default device.

        Raises:
            PatternError: if the density is not in [0, 1], or shape or block size is illegal.
            ArgumentError: if the generator is not one of torch's.

        Example:
            >>> import jitsparse as js
            >>> js.Pattern.random((256, 128), 32, 0.25)
            Pattern(shape=(256, 128), block_size=(32, 32), nnz_blocks=8, density=25.0%, device=cpu)
        """
        check_generator(generator)
        size, block = as_shape(shape), as_block_size(block_size)
        grid = grid_of(size, block)
        total = grid[0] * grid[1]
        count = as_count(density, total)
        check_range(*grid, count)
        where = torch.get_default_device() if device is None else torch.device(device)
        drawn = draw(total, count, generator, where if generator is None else generator.device)
        return cls._trusted(size, block, *compressed(drawn.to(where), grid))

    # -- facts ----------------------------------------------------------------------------------

    @property
    def grid(self) -> tuple[int, int]:
        """``(R, C)``: block rows and block columns."""
        return grid_of(self.shape, self.block_size)

    @property
    def nnz_blocks(self) -> int:
        """Number of stored blocks."""
        return self.col_indices.shape[0]

    @property
    def density(self) -> float:
        """Stored blocks as a fraction of all blocks; 0 for a matrix without blocks."""
        rows, cols = self.grid
        return self.nnz_blocks / (rows * cols) if rows * cols else 0.0

    @property
    def has_edge(self) -> bool:
        """Whether the last block row or column reaches past the matrix."""
        (rows, cols), (block_rows, block_cols) = self.shape, self.block_size
        return bool(rows % block_rows or cols % block_cols)

    @property
    def device(self) -> torch.device:
        """Device of the indices."""
        return self.crow_indices.device

    def _part(self, name: str) -> Tensor:
        """A part of the packed index, without a copy."""
        rows, cols = self.grid
        layout = IndexLayout(rows, cols, self.nnz_blocks, self.block_size, panels=False)
        return layout.view(self.index, name)

    @property
    def row_indices(self) -> Tensor:
        """``(nnz_blocks,)`` int32: the block row of each stored block."""
        return self._rows.clone()

    @property
    def _rows(self) -> Tensor:
        """:attr:`row_indices` without a copy: a view of the index, which kernels read."""
        return self._part("row_indices")

    # -- derived patterns -----------------------------------------------------------------------

    @property
    def T(self) -> Pattern:
        """The pattern of the transposed matrix, in its own row-major order.

        Made once; its own ``T`` is this pattern, as long as this one is alive.
        """
        made: Pattern | None = self.__dict__.get("_transposed")
        if made is None and "_transposed_from" in self.__dict__:
            made = self.__dict__["_transposed_from"]()
        if made is None:
            if torch.compiler.is_dynamo_compiling():
                made = self._transpose()
            else:
                with outside_of_transforms(self.crow_indices, self.col_indices):
                    made = self._transpose()
            made.__dict__["_transposed_from"] = ref(self)
            self.__dict__["_transposed"] = made
        return made

    def _transpose(self) -> Pattern:
        host = self._host if is_readable(self.crow_indices) else None
        return Pattern._trusted(
            (self.shape[1], self.shape[0]),
            (self.block_size[1], self.block_size[0]),
            self._part("ccol_indices").clone(),
            self._part("row_indices_t").clone(),
            transposed(self.traits),
            None if host is None else indexing.transposed(host, self.grid[1]),
        )

    def to(self, device: torch.device | str) -> Pattern:
        """This pattern on ``device``; itself if it is already there."""
        where = torch.device(device)  # not a dtype: that would round indices
        crow = self.crow_indices.to(where)
        if crow is self.crow_indices:
            return self
        col = self.col_indices.to(where)
        host = self._host
        if self.device.type == "cpu":  # copied: the caller's memory may change
            host = self.crow_indices.clone(), self.col_indices.clone()
        return Pattern._trusted(self.shape, self.block_size, crow, col, self.traits, host)

    def cpu(self) -> Pattern:
        """Same as ``to("cpu")``."""
        return self.to("cpu")

    def cuda(self, device: torch.device | str | int | None = None) -> Pattern:
        """Same as ``to(device)``, by default the current GPU."""
        return self.to(torch.device("cuda") if device is None else torch.device(device))

    def __or__(self, other: Pattern) -> Pattern:
        """The blocks of either pattern; shape, block size and device must agree."""
        return self._union("|", other)

    def __and__(self, other: Pattern) -> Pattern:
        """The blocks in both patterns; shape, block size and device must agree."""
        return self._combined("&", other, lambda a, b: a[torch.isin(a, b, assume_unique=True)])

    def __sub__(self, other: Pattern) -> Pattern:
        """The blocks not in ``other``; shape, block size and device must agree."""
        return self._combined("-", other, lambda a, b: a[~torch.isin(a, b, assume_unique=True)])

    def __invert__(self) -> Pattern:
        """The blocks that are not stored."""
        return Pattern.from_mask(~self.to_mask(), self.block_size, self.shape)

    def take(self, blocks: Tensor) -> Pattern:
        """The pattern of some of the blocks.

        Args:
            blocks: ``(n,)`` int32 or int64, positions of blocks in ``values``, each once, in any
                order; or ``(nnz_blocks,)`` bool.

        Raises:
            PatternError: if they are neither, or a block does not exist or is named twice.

        Example:
            >>> import jitsparse as js
            >>> a = js.random((128, 128), 32, 0.5)
            >>> strongest = a.pattern.take(a.block_norms().topk(3).indices)
            >>> a.with_pattern(strongest).values.shape
            torch.Size([3, 32, 32])
        """
        self._require_data("take")
        some = as_blocks(blocks, self.nnz_blocks)
        rows, cols = self.row_indices[some], self.col_indices[some]
        return Pattern.from_indices(rows, cols, self.block_size, self.shape)

    def _union(self, operator: str, other: Pattern) -> Pattern:
        return self._combined(operator, other, lambda a, b: torch.cat([a, b]).unique())

    def _combined(
        self, operator: str, other: Pattern, combine: Callable[[Tensor, Tensor], Tensor]
    ) -> Pattern:
        """The pattern of the sorted positions that ``combine`` makes of two sorted lists."""
        if not isinstance(other, Pattern):
            return NotImplemented
        check_alike(operator, self, other)
        self._require_data(operator)
        positions = combine(self._positions(), other._positions())
        return Pattern._trusted(self.shape, self.block_size, *compressed(positions, self.grid))

    def _require_data(self, function: str) -> None:
        """Raise PatternError on the meta device, where positions are unknown."""
        if self.device.type == "meta":
            raise PatternError(
                f"{function} needs to know where the blocks are, and {self!r} does not: do it to "
                "patterns with data, and move the result with .to('meta')"
            )

    def _positions(self) -> Tensor:
        """``(nnz_blocks,)`` int64: the row-major position of each block in the grid, sorted."""
        return self._rows.long() * self.grid[1] + self.col_indices

    def to_mask(self) -> Tensor:
        """``(R, C)`` bool tensor, true where a block is stored."""
        mask = torch.zeros(self.grid, dtype=torch.bool, device=self.device)
        mask[self._rows.long(), self.col_indices.long()] = True
        return mask

    # -- display --------------------------------------------------------------------------------

    def to_string(self, max_rows: int = 24, max_cols: int = 60) -> str:
        """Map of the pattern in ASCII, at most ``max_rows`` lines of ``max_cols`` characters.

        A character stands for one block, or for several neighbouring ones where the pattern is
        larger than the map: ``.`` if none of them is stored, ``-`` under a third, ``+`` under two
        thirds, ``*`` more, ``#`` all of them. Reads the pattern on the host.

        Raises:
            ArgumentError: if ``max_rows`` or ``max_cols`` is not an int above 0.
        """
        return character_map(self, max_rows, max_cols)

    def spy(self, ax: Axes | None = None) -> Axes:
        """Draw the pattern, one cell per block, with matplotlib; returns the axes.

        Args:
            ax: axes to draw on; by default those of a new figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        return plot(self, ax)

    def __repr__(self) -> str:
        return (
            f"Pattern(shape={self.shape}, block_size={self.block_size}, "
            f"nnz_blocks={self.nnz_blocks}, density={self.density:.1%}, device={self.device})"
        )

    def __str__(self) -> str:
        return f"{self!r}\n{self.to_string()}"

    # -- a value: comparable, hashable, copyable, frozen ----------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Pattern):
            return NotImplemented
        return (
            self._facts() == other._facts()
            and self.device.type != "meta"  # no data to compare
            and torch.equal(self.crow_indices, other.crow_indices)
            and torch.equal(self.col_indices, other.col_indices)
        )

    def __hash__(self) -> int:
        return hash(self._facts())

    def _facts(self) -> tuple[object, ...]:
        return (self.shape, self.block_size, self.nnz_blocks, self.device)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Pattern is immutable: cannot set {name!r}; build a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Pattern is immutable: cannot delete {name!r}")

    def __copy__(self) -> Pattern:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Pattern:
        # Immutable, so no copy is made, unless a mode replaces every tensor that is copied.
        indices = (self.crow_indices,)
        if has_torch_function(indices):
            replaced: Pattern = handle_torch_function(Pattern.__deepcopy__, indices, self, memo)
            return replaced
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the index: it is derived, and its parts differ between CPU and CUDA, so a pattern
        # loaded with map_location has to build its own.
        state = (self.shape, self.block_size, self.crow_indices, self.col_indices)
        return restoring.restore_pattern, state


def compressed(positions: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """crow and col of blocks at sorted row-major positions in a grid."""
    rows = torch.arange(grid[0] + 1, device=positions.device) * grid[1]
    return torch.searchsorted(positions, rows), positions % max(grid[1], 1)


restoring.allow()
