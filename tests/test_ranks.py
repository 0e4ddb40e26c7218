"""Ranks that share a batch, replicated or sharded, train what one process trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import run_two_ranks

RANK = """\
# In float64: the mean of two halves is the whole's to within less than anything wrong would be.
import sys, torch, jitsparse as js
from torch import distributed

device, sharing, store, rank = sys.argv[1:]
rank = int(rank)
distributed.init_process_group(
    {"cpu": "gloo", "cuda": "nccl"}[device], rank=rank, world_size=2,
    store=distributed.FileStore(store, 2),
)
if device == "cuda":
    torch.cuda.set_device(rank)

def model():
    torch.manual_seed(0)
    options = dict(block_size=32, density=0.41, device=device, dtype=torch.float64)  # 39 blocks
    return torch.nn.Sequential(
        js.nn.BlockSparseLinear(256, 384, **options),
        torch.nn.GELU(),
        js.nn.BlockSparseLinear(384, 256, **options),
    )

alone, shared = model(), model()
if sharing == "replicated":
    ranked = torch.nn.parallel.DistributedDataParallel(shared)
elif sharing == "replicated, patterns as they are":
    ranked = torch.nn.parallel.DistributedDataParallel(shared, broadcast_buffers=False)
else:
    from torch.distributed.fsdp import fully_shard
    mesh = distributed.init_device_mesh(device, (2,))
    for layer in shared:
        if isinstance(layer, js.nn.BlockSparseLinear):
            fully_shard(layer, mesh=mesh)
    ranked = fully_shard(shared, mesh=mesh)
optimizers = [torch.optim.SGD(each.parameters(), 0.05, momentum=0.9) for each in (alone, ranked)]
generator = torch.Generator().manual_seed(1)
for _ in range(4):
    x = torch.randn(64, 256, generator=generator).to(device, torch.float64)
    losses = []
    for each, optimizer, batch in zip((alone, ranked), optimizers, (x, x[rank::2]), strict=True):
        optimizer.zero_grad()
        loss = (each(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    distributed.all_reduce(losses[1])
    torch.testing.assert_close(losses[1] / 2, losses[0])
for mine, whole in zip(ranked.parameters(), alone.parameters(), strict=True):
    mine = mine.full_tensor() if sharing == "sharded" else mine
    torch.testing.assert_close(mine, whole)
js.nn.require_same_patterns(ranked)
"""

RESIZED = """\
# A wrapper that does not know the gradients of a layer would leave them to each rank.
import sys, torch, jitsparse as js
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

store, rank = sys.argv[1:]
rank = int(rank)
distributed.init_process_group(
    "gloo", rank=rank, world_size=2, store=distributed.FileStore(store, 2)
)
torch.manual_seed(0)
model = torch.nn.Sequential(
    js.nn.BlockSparseLinear(64, 64, 16, density=0.5), torch.nn.Linear(64, 8)
)
sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
generator = torch.Generator().manual_seed(rank)

def step(wrapper):
    sgd.zero_grad()
    wrapper(torch.randn(8, 64, generator=generator)).square().mean().backward()
    sgd.step()

old = DistributedDataParallel(model, find_unused_parameters=True)
step(old)
as_many = js.Pattern.random((64, 64), 16, 0.5, generator=torch.Generator().manual_seed(2))
model[0].set_pattern(as_many, sgd)
step(old)
js.nn.prune_(model, 0.25, sgd)
try:
    step(old)
except js.ArgumentError as error:
    assert "wrap the model anew" in str(error), error
else:
    raise SystemExit("it ran")
new = DistributedDataParallel(model, find_unused_parameters=True)
for _ in range(3):
    step(new)
values = [torch.empty_like(model[0].values) for _ in range(2)]
distributed.all_gather(values, model[0].values.detach())
assert torch.equal(*values)
"""


def test_a_wrapper_of_other_numbers_of_blocks_refuses_to_run(tmp_path: Path) -> None:
    run_two_ranks(RESIZED, where=tmp_path)


TWO_GPUS = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.mark.parametrize("sharing", ["replicated", "replicated, patterns as they are", "sharded"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=TWO_GPUS)])
def test_ranks_train_what_one_process_trains(device: str, sharing: str, tmp_path: Path) -> None:
    run_two_ranks(RANK, device, sharing, where=tmp_path)
