"""The registered operations: flat tensors and ints in, one tensor out, no gradients.

    jitsparse::dsd(values, index, dense, rows, cols, transposed) -> out
    jitsparse::dds(dense, values, index, rows, cols, transposed, bias, activation) -> out
    jitsparse::sdd(left, right, index, rows, cols, nnz, block_rows, block_cols) -> values

``rows`` and ``cols`` are those of the matrix as stored, ``transposed`` how it is read, ``index`` is
:attr:`Pattern.index <jitsparse.Pattern>`, ``activation`` a position in
:data:`jitsparse.reference.ACTIVATIONS`. Outputs are contiguous whatever the strides of the inputs.

One operation stands for all its kernels, so a captured graph does not depend on which of them runs,
and pinning one never recompiles a graph. The operations trust their arguments; users' arguments are
judged in :mod:`jitsparse.functional`, gradients live in :mod:`jitsparse.autograd`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from jitsparse.kernels import dispatch

__all__ = ["dds", "dsd", "sdd"]

_library = torch.library.Library("jitsparse", "DEF")

_library.define(
    "dsd(Tensor values, Tensor index, Tensor dense, SymInt rows, SymInt cols, bool transposed) "
    "-> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "dds(Tensor dense, Tensor values, Tensor index, SymInt rows, SymInt cols, bool transposed, "
    "Tensor? bias, int activation) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "sdd(Tensor left, Tensor right, Tensor index, SymInt rows, SymInt cols, SymInt nnz, "
    "SymInt block_rows, SymInt block_cols) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)

for _key in ("CPU", "CUDA"):
    _library.impl("dsd", dispatch.dsd, _key)
    _library.impl("dds", dispatch.dds, _key)
    _library.impl("sdd", dispatch.sdd, _key)


def _dsd_fake(
    values: Tensor, index: Tensor, dense: Tensor, rows: int, cols: int, transposed: bool
) -> Tensor:
    return dense.new_empty((*dense.shape[:-2], cols if transposed else rows, dense.shape[-1]))


def _dds_fake(
    dense: Tensor,
    values: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    transposed: bool,
    bias: Tensor | None,
    activation: int,
) -> Tensor:
    return dense.new_empty((*dense.shape[:-1], rows if transposed else cols))


def _sdd_fake(
    left: Tensor,
    right: Tensor,
    index: Tensor,
    rows: int,
    cols: int,
    nnz: int,
    block_rows: int,
    block_cols: int,
) -> Tensor:
    return left.new_empty((nnz, block_rows, block_cols))


torch.library.register_fake("jitsparse::dsd", _dsd_fake, lib=_library)
torch.library.register_fake("jitsparse::dds", _dds_fake, lib=_library)
torch.library.register_fake("jitsparse::sdd", _sdd_fake, lib=_library)

# Bound once: looking an overload up through torch.ops costs as much as calling it.
dsd: Callable[..., Tensor] = torch.ops.jitsparse.dsd.default
dds: Callable[..., Tensor] = torch.ops.jitsparse.dds.default
sdd: Callable[..., Tensor] = torch.ops.jitsparse.sdd.default
