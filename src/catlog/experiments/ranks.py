"""The ranks of one run: processes, started by torchrun, that train one model on divided batches."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """Who this process is among how many, and what they tell each other beside gradients.

    messages: a process group on CPUs; None: all ranks, whose group is one.
    """

    rank: int = 0
    size: int = 1
    messages: Any = None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def from_first(self, action: Callable[[], Any]) -> Any:
        """What ``action`` gives on the first rank, where alone it is done; an error there is raised on all."""
        if self.size == 1:
            return action()
        told: list[Any] = [None, None]
        if self.first:
            try:
                told[0] = action()
            except Exception as error:
                told[1] = error
        dist.broadcast_object_list(told, src=0, group=self.messages)
        if told[1] is not None:
            raise told[1]
        return told[0]

    def any(self, flag: bool) -> bool:
        """Whether it is so on one of them."""
        if self.size == 1:
            return flag
        flags = torch.tensor([flag], dtype=torch.int32)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.messages)
        return bool(flags)

    def all(self, thing: Any) -> list[Any]:
        """Everyone's."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing, group=self.messages)
        return things

    def part(self) -> None:
        """Give every rank but the first a stream of random numbers of its own, made from the common one and its number."""
        if not self.first:
            key = torch.get_rng_state().numpy().tobytes() + str(self.rank).encode()
            torch.manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7]))


def launched() -> int:
    """How many ranks torchrun has started."""
    return (
        int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else 1
    )


@contextlib.contextmanager
def ranks(device: torch.device) -> Iterator[Ranks]:
    """The ranks of this run: gloo on CPUs, nccl on GPUs, one of which each rank takes for itself."""
    if launched() == 1 and not (dist.is_available() and dist.is_initialized()):
        yield Ranks()
        return
    cuda, began = device.type == "cuda", not dist.is_initialized()
    if began:
        if cuda:
            torch.cuda.set_device(
                int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
            )
        dist.init_process_group("nccl" if cuda else "gloo")
    try:
        messages = dist.new_group(backend="gloo") if dist.get_backend() != "gloo" else None
        yield Ranks(dist.get_rank(), dist.get_world_size(), messages)
    finally:
        if began:
            dist.destroy_process_group()


def training_group() -> Any:
    """The process group whose ranks train together, or None for one process alone."""
    together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return dist.group.WORLD if together else None
