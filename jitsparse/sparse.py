"""Block-sparse matrices: values on a pattern, and their conversions."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import jitsparse  # for jitsparse.functional, which imports this module
from jitsparse import entries, interop, linear_operator, reference, restoring, torch_functions
from jitsparse.blocks import (
    block_positions,
    clear_edge,
    extract_blocks,
    frobenius_norms,
    gather_blocks,
    nonzero_block_mask,
    require_like,
)
from jitsparse.checks import as_block_size, check_alike, check_dtype, is_dense, kind_of
from jitsparse.errors import ArgumentError
from jitsparse.pattern import Pattern

if TYPE_CHECKING:
    from scipy.sparse import bsr_array
    from scipy.sparse.linalg import LinearOperator

__all__ = ["BlockSparse", "random"]


class BlockSparse:
    """A block-sparse matrix: the values of the stored blocks, and their pattern.

    Args:
        values: ``(nnz_blocks, block_rows, block_cols)``, the blocks in the pattern's order. Kept
            without a copy if contiguous. Elements past the edge of the matrix are padding: they
            must be finite, in the dtype of autocast too, and zero if you read blocks directly
            (their norms, say). Computed values are zero there.
        pattern: where the blocks are.

    ``a.T`` is the transposed matrix on the same values: nothing is copied. ``values`` and
    ``pattern`` describe the matrix as stored, ``transposed`` says whether it is read transposed,
    and ``shape`` is its shape as read. Gradients arrive in ``values.grad``.

    ``a @ x`` and ``x @ a`` are :func:`~jitsparse.dsd` and :func:`~jitsparse.dds`, and so are
    ``torch.matmul``, ``mm`` and ``mv``; ``F.linear(x, a)`` is :func:`~jitsparse.linear`.
    ``torch.compile(fullgraph=True)`` does not trace the operators of a class: call ``dsd`` and
    ``dds`` there, or from torch 2.11 on the functions of torch.
    ``a + b`` and ``a - b`` store the blocks of either operand.
    ``2 * a``, ``a / 2`` and ``-a`` keep the pattern. ``==`` compares identity, since there is no
    block-sparse bool matrix; compare patterns and values.

    Raises:
        ArgumentError: if the values do not fit the pattern.

    Example:
        >>> import torch, jitsparse as js
        >>> pattern = js.Pattern.from_mask(torch.tensor([[True, False], [True, True]]), 8)
        >>> a = js.BlockSparse(torch.randn(3, 8, 8), pattern)
        >>> (a @ torch.randn(16, 5)).shape
        torch.Size([16, 5])
        >>> (a.T.to_dense() == a.to_dense().T).all().item()
        True
    """

    values: Tensor
    pattern: Pattern
    transposed: bool
    shape: tuple[int, int]

    def __init__(self, values: Tensor, pattern: Pattern) -> None:
        _check_values(values, pattern)
        self._hold(values.contiguous(), pattern, False, pattern.shape)

    @classmethod
    def _trusted(cls, values: Tensor, pattern: Pattern) -> BlockSparse:
        """The matrix of contiguous values that fit a pattern, sooner by a microsecond of checks."""
        matrix = cls.__new__(cls)
        matrix._hold(values, pattern, False, pattern.shape)
        return matrix

    def _hold(
        self, values: Tensor, pattern: Pattern, transposed: bool, shape: tuple[int, int]
    ) -> None:
        hold = object.__setattr__
        hold(self, "values", values)
        hold(self, "pattern", pattern)
        hold(self, "transposed", transposed)
        hold(self, "shape", shape)

    def __setattr__(self, name: str, value: Any) -> None:
        # Kernels trust that values and pattern have the same number of blocks.
        if name == "values":
            _check_values(value, self.pattern)
            value = value.contiguous()
        elif name in ("pattern", "transposed", "shape"):
            raise AttributeError(
                f"{name} of a BlockSparse cannot be set; build another one: "
                "BlockSparse(values, pattern), or a.T for the transposed matrix"
            )
        elif name == "_is_param":  # how nn.Parameter marks tensors of other classes
            raise ArgumentError(
                "a BlockSparse is no Tensor, so a module would not register it: "
                "nn.Parameter(a.values) and BlockSparse(values, pattern) in forward, or "
                "js.nn.BlockSparseLinear"
            )
        object.__setattr__(self, name, value)

    @property
    def T(self) -> BlockSparse:
        """The transposed matrix on the same values."""
        flipped = BlockSparse.__new__(BlockSparse)
        rows, cols = self.shape
        flipped._hold(self.values, self.pattern, not self.transposed, (cols, rows))
        return flipped

    # -- conversions ----------------------------------------------------------------------------

    @classmethod
    def from_dense(
        cls, dense: Tensor, block_size: int | Sequence[int], mask: Tensor | None = None
    ) -> BlockSparse:
        """The blocks of a dense matrix; differentiable.

        Args:
            dense: ``(rows, cols)``.
            block_size: an int or a pair.
            mask: ``(R, C)`` bool, which blocks to keep; by default those that hold a nonzero.

        Raises:
            ArgumentError: if ``dense`` is not a matrix.
            PatternError: if the mask does not fit, or the block size is not supported.

        Example:
            >>> import torch, jitsparse as js
            >>> a = js.BlockSparse.from_dense(torch.eye(96), 32)
            >>> a.nnz_blocks, a.density
            (3, 0.3333333333333333)
        """
        if not is_dense(dense):
            raise ArgumentError(f"from_dense takes a Tensor, got {kind_of(dense)}")
        if dense.dim() != 2:
            raise ArgumentError(f"from_dense takes a matrix, got shape {tuple(dense.shape)}")
        block = as_block_size(block_size)
        if mask is None:
            mask = nonzero_block_mask(dense.detach(), block)
        pattern = Pattern.from_mask(mask, block, tuple(dense.shape)).to(dense.device)
        row, col = pattern._rows, pattern.col_indices
        return cls(extract_blocks(dense, row, col, block), pattern)

    def to_dense(self) -> Tensor:
        """``(rows, cols)`` tensor with zeros where no block is stored; differentiable.

        Example:
            >>> import torch, jitsparse as js
            >>> a = js.BlockSparse.from_dense(torch.eye(96), 32)
            >>> torch.equal(a.to_dense(), torch.eye(96))
            True
        """
        pattern = self.pattern
        dense = reference.expand(self.values, pattern._rows, pattern.col_indices, pattern.shape)
        return dense.mT if self.transposed else dense

    def with_pattern(self, pattern: Pattern) -> BlockSparse:
        """This matrix on another pattern; differentiable.

        Blocks in both patterns are kept bit for bit; blocks only in the new one are zero.

        Args:
            pattern: for the matrix as stored, like :attr:`pattern`, with the same shape, block
                size and device.

        Raises:
            ArgumentError: if it is not such a pattern.

        Example:
            >>> import torch, jitsparse as js
            >>> a = js.random((128, 128), 32, 0.5)
            >>> everywhere = js.Pattern.from_mask(torch.ones(4, 4, dtype=torch.bool), 32)
            >>> torch.equal(a.with_pattern(everywhere).to_dense(), a.to_dense())
            True
        """
        mine = self.pattern
        require_like("with_pattern(pattern)", pattern, mine.shape, mine.block_size, mine.device)
        return self._with(clear_edge(self._values_on(pattern), pattern), pattern)

    def with_values(self, values: Tensor) -> BlockSparse:
        """Other values on the same blocks; transposed if this matrix is.

        Args:
            values: with the shape and block order of :attr:`values`.

        Raises:
            ArgumentError: if they do not fit the pattern.

        Example:
            >>> import jitsparse as js
            >>> a = js.random((128, 64), 32, 0.5).T
            >>> positive = a.with_values(a.values.relu())
            >>> (positive.to_dense() == a.to_dense().relu()).all().item()
            True
        """
        return self._with(values, self.pattern)

    @classmethod
    def from_coo(
        cls,
        rows: Tensor,
        cols: Tensor,
        values: Tensor,
        shape: Sequence[int],
        block_size: int | Sequence[int],
    ) -> BlockSparse:
        """From single elements, in any order: a graph, or a finite-element assembly.

        Every block that contains an element is stored, even if the element is zero. No dense matrix
        is made; the same elements give the same bits, on a GPU too. Reads the indices on the host.

        Args:
            rows, cols: ``(n,)`` int32 or int64 on one device: the position of each element.
            values: ``(n,)`` float64, float32, float16 or bfloat16 on that device. Duplicates are
                summed, in float32 or wider. Differentiable.
            shape: ``(rows, cols)`` of the matrix; need not be a multiple of the block.
            block_size: an int or a pair.

        Raises:
            PatternError: if rows and cols are not such tensors or point outside the matrix, or
                shape or block size is illegal.
            ArgumentError: if ``values`` is not such a tensor.

        Example:
            >>> import torch, jitsparse as js
            >>> rows, cols = torch.tensor([0, 99, 99]), torch.tensor([0, 49, 49])
            >>> a = js.BlockSparse.from_coo(rows, cols, torch.ones(3), (100, 50), 32)
            >>> a.nnz_blocks, a.to_dense()[99, 49].item()
            (2, 2.0)
        """
        return cls(*entries.from_coo(rows, cols, values, shape, block_size))

    @classmethod
    def from_sparse(cls, tensor: Tensor, block_size: int | Sequence[int]) -> BlockSparse:
        """From the elements of a sparse torch tensor of any layout, as in :meth:`from_coo`.

        Elements are copied. Differentiable, though torch (2.13) keeps no gradient in a CSC, BSR or
        BSC leaf. :meth:`from_bsr` shares the blocks of a BSR tensor.

        Args:
            tensor: ``(rows, cols)``, a sparse matrix; COO ones need not be coalesced.
            block_size: an int or a pair.

        Raises:
            ArgumentError: if it is not a sparse matrix, or its dtype is not supported.
            PatternError: if the block size is not supported.

        Example:
            >>> import torch, jitsparse as js
            >>> js.BlockSparse.from_sparse(torch.eye(100).to_sparse_csr(), 32).nnz_blocks
            4
        """
        return cls(*entries.from_sparse(tensor, block_size))

    @classmethod
    def from_bsr(cls, tensor: Tensor) -> BlockSparse:
        """From torch's BSR layout. Contiguous values are shared, and so are int32 indices.

        Torch (2.13) computes no gradient of a BSR leaf: backward raises an error of its own. One
        that operations have made, of ``dense.to_sparse_bsr(...)`` say, takes gradients.

        Raises:
            ArgumentError: if the tensor is not a 2-d BSR tensor.
            PatternError: if its block size is not supported or its indices are not canonical.

        Example:
            >>> import torch, jitsparse as js
            >>> bsr = torch.eye(96).to_sparse_bsr((32, 32))
            >>> js.BlockSparse.from_bsr(bsr).nnz_blocks
            3
        """
        return cls(*interop.from_bsr(tensor))

    def to_bsr(self) -> Tensor:
        """As a torch BSR tensor, sharing values and indices; a transposed matrix is copied.

        Raises:
            ArgumentError: if the shape is not a multiple of the block size, which torch needs.
        """
        return interop.to_bsr(*self._row_major("torch's BSR layout"), self.shape)

    @classmethod
    def from_scipy(cls, matrix: Any, block_size: int | Sequence[int] | None = None) -> BlockSparse:
        """From an array or a matrix of ``scipy.sparse``.

        A ``bsr_array`` or ``bsr_matrix`` keeps its blocks, and its values are shared. SciPy's own
        conversions leave the blocks of a row unsorted; such a matrix is sorted in a copy. Arrays
        that torch cannot share (read-only ones, say) are copied, too. SciPy's in-place methods
        (``eliminate_zeros``, ``sum_duplicates``, ``prune``, ``sort_indices``) move blocks in the
        shared memory without updating this matrix's indices: call them on a copy,
        ``matrix.copy()``.

        From other formats, or into other block sizes, elements are copied as in :meth:`from_coo`;
        the shape need not be a multiple of the block then.

        Args:
            matrix: of float64 or float32.
            block_size: an int or a pair; by default that of the BSR matrix.

        Raises:
            ArgumentError: if it is not such a matrix, has integers or a dtype that torch lacks, or
                has no blocks and no ``block_size`` is given.
            PatternError: if the block size is not supported, or a block is stored twice.

        Example:
            >>> import numpy as np, scipy.sparse, jitsparse as js
            >>> js.BlockSparse.from_scipy(scipy.sparse.csr_array(np.eye(100)), 32).nnz_blocks
            4
        """
        return cls(*interop.from_scipy(matrix, block_size))

    def to_scipy(self) -> bsr_array:
        """As a ``scipy.sparse.bsr_array``, sharing values if this matrix is on the CPU.

        SciPy's in-place methods (``eliminate_zeros``, ``sum_duplicates``, ``prune``,
        ``sort_indices``) move blocks in the shared memory without updating this matrix's indices:
        call them on a copy, ``a.to_scipy().copy()``.

        Raises:
            ArgumentError: if the shape is not a multiple of the block size, or NumPy lacks the
                dtype.
        """
        return interop.to_scipy(*self._row_major("SciPy's BSR format"), self.shape)

    def to_linear_operator(self) -> LinearOperator:
        """As a ``scipy.sparse.linalg.LinearOperator``, for ``cg``, ``gmres``, ``eigsh``, ``svds``.

        It shares the values that the matrix has now, of any shape, and records no gradients.
        Products are computed and returned in the dtype of the matrix, whatever the operand's dtype:
        for a solver in float64, use ``a.to(torch.float64).to_linear_operator()``.

        Raises:
            ArgumentError: if the matrix is neither float64 nor float32, or not on the CPU.
            ImportError: SciPy is not installed.

        Example:
            >>> import numpy as np, torch, jitsparse as js
            >>> a = js.BlockSparse.from_dense(2 * torch.eye(100), 32)
            >>> a.to_linear_operator().matvec(np.ones(100)).sum().item()
            200.0
        """
        return linear_operator.linear_operator(self)

    def _row_major(self, destination: str) -> tuple[Tensor, Tensor, Tensor]:
        """crow, col and values of the matrix as read."""
        pattern = self.pattern
        if pattern.has_edge:
            rows, cols = (g * b for g, b in zip(pattern.grid, pattern.block_size, strict=True))
            raise ArgumentError(
                f"{destination} needs whole blocks, and shape {pattern.shape} is not a multiple of "
                f"block size {pattern.block_size}: build the matrix with shape {(rows, cols)}"
            )
        if not self.transposed:
            return pattern.crow_indices, pattern.col_indices, self.values
        return pattern._part("ccol_indices"), pattern._part("row_indices_t"), self._flipped_values()

    def _flipped_values(self) -> Tensor:
        """The values of the transposed matrix in its own row-major order."""
        return self.values[self.pattern._part("perm").long()].mT.contiguous()

    # -- tensor-like attributes -----------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of ``values``."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Device of ``values`` and ``pattern``."""
        return self.values.device

    @property
    def ndim(self) -> int:
        """Number of axes, 2 as of any matrix."""
        return 2

    @property
    def block_size(self) -> tuple[int, int]:
        """``(block_rows, block_cols)`` of the matrix as read."""
        rows, cols = self.pattern.block_size
        return (cols, rows) if self.transposed else (rows, cols)

    @property
    def nnz_blocks(self) -> int:
        """Number of stored blocks."""
        return self.pattern.nnz_blocks

    @property
    def density(self) -> float:
        """Stored blocks as a fraction of all blocks."""
        return self.pattern.density

    def block_norms(self) -> Tensor:
        """``(nnz_blocks,)``: the Frobenius norm of each stored block; differentiable.

        In the order of ``values``; float64 for float64 values, else float32.

        Example:
            >>> import torch, jitsparse as js
            >>> a = js.random((128, 128), 32, 0.5)
            >>> strongest = a.block_norms().topk(3).indices
            >>> a.values[strongest].shape
            torch.Size([3, 32, 32])
        """
        return frobenius_norms(clear_edge(self.values, self.pattern))

    @property
    def requires_grad(self) -> bool:
        """Whether operations record gradients of ``values``; can be set."""
        return self.values.requires_grad

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.values.requires_grad = requires_grad

    @property
    def grad(self) -> Tensor | None:
        """``values.grad``: ``(nnz_blocks, block_rows, block_cols)``, or None, which can be set."""
        return self.values.grad

    @grad.setter
    def grad(self, grad: Tensor | None) -> None:
        self.values.grad = grad

    def requires_grad_(self, requires_grad: bool = True) -> BlockSparse:
        """Let operations record gradients of ``values``; returns this matrix."""
        self.values.requires_grad_(requires_grad)
        return self

    def detach(self) -> BlockSparse:
        """This matrix on the same values, detached from the autograd graph."""
        return self._with(self.values.detach(), self.pattern)

    def clone(self) -> BlockSparse:
        """This matrix on a copy of its values; differentiable. The immutable pattern is shared."""
        return self._with(self.values.clone(), self.pattern)

    def cpu(self) -> BlockSparse:
        """Same as ``to("cpu")``."""
        return self.to("cpu")

    def cuda(self, device: torch.device | str | int | None = None) -> BlockSparse:
        """Same as ``to(device)``, by default the current GPU."""
        return self.to("cuda" if device is None else device)

    def to(self, *args: Any, **kwargs: Any) -> BlockSparse:
        """Like ``Tensor.to``: another device, another dtype or both; differentiable."""
        values = self.values.to(*args, **kwargs)
        if values is self.values:
            return self
        pattern = self.pattern.to(values.device)
        if values.dtype is not self.values.dtype:
            check_dtype(values.dtype)
            values = clear_edge(values, pattern)  # padding may be infinite in the new one
        return self._with(values, pattern)

    def _with(self, values: Tensor, pattern: Pattern) -> BlockSparse:
        matrix = BlockSparse(values, pattern)
        return matrix.T if self.transposed else matrix

    def __reduce__(self) -> tuple[Any, ...]:
        return restoring.restore_matrix, (self.values, self.pattern, self.transposed)

    # -- sums and multiples ---------------------------------------------------------------------

    def __add__(self, other: BlockSparse) -> BlockSparse:
        """The sum, on the blocks of either matrix; shape, block size and device must agree."""
        return self._combined("+", other, torch.add)

    def __sub__(self, other: BlockSparse) -> BlockSparse:
        return self._combined("-", other, torch.sub)

    def _combined(
        self, operator: str, other: BlockSparse, combine: Callable[[Tensor, Tensor], Tensor]
    ) -> BlockSparse:
        if not isinstance(other, BlockSparse):
            return NotImplemented
        check_alike(operator, self, other)
        if other.transposed != self.transposed:
            other = BlockSparse(other._flipped_values(), other.pattern.T).T
        pattern, values = self.pattern, [self.values, other.values]
        if pattern != other.pattern:
            pattern = pattern._union(operator, other.pattern)
            values = [each._values_on(pattern) for each in (self, other)]
        return self._with(clear_edge(combine(*values), pattern), pattern)

    def _values_on(self, pattern: Pattern) -> Tensor:
        """The values on another pattern of the matrix as stored."""
        return gather_blocks(self.values, block_positions(pattern, self.pattern))

    def __mul__(self, factor: float | Tensor) -> BlockSparse:
        return self._scaled(self.values * factor) if _is_scalar(factor) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, divisor: float | Tensor) -> BlockSparse:
        return self._scaled(self.values / divisor) if _is_scalar(divisor) else NotImplemented

    def __neg__(self) -> BlockSparse:
        return self._scaled(-self.values)

    def _scaled(self, values: Tensor) -> BlockSparse:
        # Zero padding times infinity is not zero.
        return self._with(clear_edge(values, self.pattern), self.pattern)

    # -- products -------------------------------------------------------------------------------

    # NumPy would treat a matrix as a scalar of dtype object.
    __array_ufunc__ = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Refused: NumPy would make an array of one object.

        SciPy asks for an array before it multiplies one of its own matrices by this one.
        """
        raise TypeError(
            "a BlockSparse is no array; a.to_dense().numpy(force=True) is one of all elements, and "
            "a.to_scipy() a BSR matrix, which SciPy can multiply"
        )

    def __matmul__(self, other: Tensor) -> Tensor:
        if not isinstance(other, (Tensor, BlockSparse)):
            interop.refuse_array("a @ x", other)
            return NotImplemented
        return jitsparse.functional.dsd(self, other)

    def __rmatmul__(self, other: Tensor) -> Tensor:
        if not isinstance(other, Tensor):
            interop.refuse_array("x @ a", other)
            return NotImplemented
        return jitsparse.functional.dds(other, self)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run ``torch.matmul``, ``mm``, ``mv`` and ``F.linear`` as operations of jitsparse.

        Other functions are refused, unless another class among the operands has one.
        """
        return torch_functions.call(func, types, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        """Explain a missing attribute that a Tensor has: ``torch.nn.init`` looks for some."""
        if hasattr(Tensor, name):
            call = "()" if callable(getattr(Tensor, name)) else ""
            raise AttributeError(
                f"a BlockSparse is no Tensor and has no {name}{call}"
                f"{torch_functions.instead(name)}. What leaves zeros zero can be done to a.values, "
                "anything else to a.to_dense()"
            )
        raise AttributeError(f"'BlockSparse' object has no attribute {name!r}")

    # -- display --------------------------------------------------------------------------------

    def __repr__(self) -> str:
        facts = [
            f"shape={self.shape}",
            f"block_size={self.block_size}",
            f"nnz_blocks={self.nnz_blocks}",
            f"density={self.density:.1%}",
            f"dtype={self.dtype}",
            f"device={self.device}",
        ]
        if self.transposed:
            facts.append("transposed=True")
        if self.requires_grad:
            facts.append("requires_grad=True")
        return f"BlockSparse({', '.join(facts)})"

    def __str__(self) -> str:
        return f"{self!r}\n{(self.pattern.T if self.transposed else self.pattern).to_string()}"


def random(
    shape: Sequence[int],
    block_size: int | Sequence[int],
    density: float,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> BlockSparse:
    """A random block-sparse matrix: ``round(density * R * C)`` blocks, standard normal values.

    Args:
        shape: ``(rows, cols)`` in elements.
        block_size: an int or a pair.
        density: fraction of the blocks that are stored, 0 to 1.
        dtype: of the values; by default torch's default dtype.
        device: by default torch's default device.
        generator: source of randomness for pattern and values, which are drawn on its device.

    Raises:
        PatternError: if shape, block size or density is illegal.
        ArgumentError: if the dtype is not supported, or the generator is not one of torch's.

    Example:
        >>> import torch, jitsparse as js
        >>> js.random((1000, 500), 32, 0.25, dtype=torch.bfloat16)  # doctest: +ELLIPSIS
        BlockSparse(shape=(1000, 500), block_size=(32, 32), nnz_blocks=128, density=25.0%, ...
    """
    check_dtype(dtype)
    pattern = Pattern.random(shape, block_size, density, generator=generator, device=device)
    values = torch.randn(
        pattern.values_shape,
        dtype=dtype,
        device=pattern.device if generator is None else generator.device,
        generator=generator,
    ).to(pattern.device)
    return BlockSparse(clear_edge(values, pattern), pattern)


def _check_values(values: Tensor, pattern: Pattern) -> None:
    if not is_dense(values) or not isinstance(pattern, Pattern):
        raise ArgumentError(
            "BlockSparse(values, pattern) takes a Tensor and a Pattern, got "
            f"{kind_of(values)} and {kind_of(pattern)}"
        )
    expected = pattern.values_shape
    if values.shape != expected:
        raise ArgumentError(
            f"the pattern has {expected[0]} blocks of {expected[1]} x {expected[2]}, so values has "
            f"shape {expected}; got {tuple(values.shape)}"
        )
    check_dtype(values.dtype)
    if values.device != pattern.crow_indices.device:
        raise ArgumentError(
            f"values are on {values.device} and the pattern on {pattern.device}; move one of them "
            f"with .to()"
        )


def _is_scalar(thing: object) -> bool:
    return thing.dim() == 0 if isinstance(thing, Tensor) else isinstance(thing, numbers.Real)
