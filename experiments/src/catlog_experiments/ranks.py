"""The ranks of a run: processes started by torchrun that train one model on divided batches."""

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
    """This process's rank and the world size, with the collectives used besides gradient averaging.

    Attributes:
        rank: the number of this process.
        size: the number of processes.
        group: a process group on CPUs; None: the default group.
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def from_first(self, action: Callable[[], Any]) -> Any:
        """Call ``action`` on the first rank; return its result, or raise its error, on all."""
        if self.size == 1:
            return action()
        message: list[Any] = [None, None]  # the result, or the error
        if self.is_first:
            try:
                message[0] = action()
            except Exception as error:
                message[1] = error
        dist.broadcast_object_list(message, src=0, group=self.group)
        if message[1] is not None:
            raise message[1]
        return message[0]

    def any(self, flag: bool) -> bool:
        """Return True if ``flag`` is set on any rank."""
        if self.size == 1:
            return flag
        flags = torch.tensor([flag], dtype=torch.int32)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.group)
        return bool(flags)

    def gather(self, value: Any) -> list[Any]:
        """Gather ``value`` from all ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def split_random_streams(self) -> None:
        """Reseed every rank but the first from the common random state and its rank."""
        if not self.is_first:
            key = torch.get_rng_state().numpy().tobytes() + str(self.rank).encode()
            torch.manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7]))


def launched_ranks() -> int:
    """Return the number of ranks that torchrun has started, 1 without torchrun."""
    by_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    return int(os.environ["WORLD_SIZE"]) if by_torchrun else 1


@contextlib.contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the ranks of this run: gloo on CPUs; nccl on GPUs, one GPU per rank."""
    if launched_ranks() == 1 and not (dist.is_available() and dist.is_initialized()):
        yield Ranks()
        return
    on_gpu, initialises = device.type == "cuda", not dist.is_initialized()
    if initialises:
        if on_gpu:
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            torch.cuda.set_device(local_rank % torch.cuda.device_count())
        dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        group = dist.new_group(backend="gloo") if dist.get_backend() != "gloo" else None
        yield Ranks(dist.get_rank(), dist.get_world_size(), group)
    finally:
        if initialises:
            dist.destroy_process_group()


def training_group() -> Any:
    """Return the process group whose ranks train together, or None for a single process."""
    is_shared = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return dist.group.WORLD if is_shared else None
