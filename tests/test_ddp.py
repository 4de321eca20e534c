"""Data parallel: two ranks with half of the batch each give the gradient of one process, exactly, for the same draws."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent
from torch.nn.parallel import DistributedDataParallel

import catlog


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 6).double()
        self.decoder = nn.Linear(6, 4).double()

    def forward(self, images: Tensor, x: Tensor) -> Tensor:
        q = Independent(Bernoulli(logits=self.encoder(images)), 1)
        return catlog.IndeCateR(2)(lambda z: (self.decoder(z).sin() - images).square().sum(-1), q, x=x).mean()


def problem() -> tuple[Model, Tensor, Tensor]:
    torch.manual_seed(0)
    return Model(), torch.randn(8, 4, dtype=torch.float64), torch.bernoulli(torch.full((2, 8, 6), 0.5, dtype=torch.float64))


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def work(rank: int, port_file: str, result: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{port_file}", rank=rank, world_size=2)
    model, images, x = problem()
    half = slice(4 * rank, 4 * rank + 4)
    parallel = DistributedDataParallel(model)  # its hooks live as long as it does
    parallel(images[half], x[:, half]).backward()
    if rank == 0:
        torch.save(gradient(model), result)
    dist.destroy_process_group()


def test_two_ranks_equal_one_process() -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "gradient.pt")
        mp.spawn(work, args=(os.path.join(folder, "store"), result), nprocs=2)
        shared = torch.load(result, weights_only=True)
    model, images, x = problem()
    model(images, x).backward()
    torch.testing.assert_close(shared, gradient(model), rtol=0, atol=1e-14)
