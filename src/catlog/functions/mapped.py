"""f at one point at a time, by the workers of an executor: for simulators and solvers."""

import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from ..core.checks import check_count


@dataclass(frozen=True, eq=False)
class Mapped:
    r"""f of one point, evaluated by the workers of an executor.

    ``f(point)`` gets one point as a numpy array ``[*event]`` and returns a number, or an array for
    a call with ``outputs``. Pass ``Mapped(f, executor)`` to an estimator as f. Its values have no
    gradient, so use an estimator that does not differentiate f.

    The executor is one of ``concurrent.futures`` or another with their method ``submit``: loky's
    ``get_reusable_executor()``, Dask's ``client.get_executor()``, mpi4py's ``MPIPoolExecutor``. It
    decides how f reaches the workers. Processes of the standard library import f by its name. loky
    and Dask also copy lambdas and functions of a notebook.

    If f raises an error, a RuntimeError names the row in ``[n, *batch]`` and the point. Its cause
    is the error, or shows the traceback of another process. After an error and after Ctrl-C, rows
    that have not begun are cancelled.

    Noise in f is independent between rows. It is the same after the same ``torch.manual_seed``,
    whatever the number of workers and ``chunk``, if it comes from the generator that ``rng`` adds
    or, in worker processes with one thread, from the global generators of numpy, Python or torch,
    which are seeded for every row.

    Cost: one evaluation per row, and some tenths of a millisecond per task for messages.
    Needs: numpy.

    Args:
        f: The function of a point. Further arguments come from ``batch`` and ``rng``.
        executor: What evaluates f.
        chunk: Rows per task. If f takes less than some milliseconds, 1 is too few.
        event_dims: The number of dimensions of a point: 1, 0 for a single variable, or 2 for
            one-hot points.
        batch: The second argument of f: one entry per batch element (flattened).
        rng: Pass f a ``numpy.random.Generator`` as its last argument.
        dtype: The dtype of the values; None: that of the points, float32 at least, or torch's
            default for integers.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as executor:
    ...     f = Mapped(lambda point: point[0] + 2 * point[1], executor)
    ...     f(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    tensor([2., 1.])
    """

    f: Callable[..., Any]
    executor: Executor
    chunk: int = 1
    _: KW_ONLY
    event_dims: int = 1
    batch: Sequence[Any] | None = None
    rng: bool = False
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        for name, method in (("f", "__call__"), ("executor", "submit")):
            if not hasattr(value := getattr(self, name), method):
                raise TypeError(f"Mapped: `{name}` must have `{method}`, but it is {value!r}.")
        check_count("Mapped", "chunk", self.chunk)
        check_count("Mapped", "event_dims", self.event_dims, least=0)

    def __call__(self, x: Tensor) -> Tensor:
        import numpy

        lead = x.shape[: x.dim() - self.event_dims]
        real = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        real = torch.promote_types(real, torch.float32)
        host = x.detach().to("cpu", real if x.dtype == torch.bfloat16 else x.dtype)
        # Arrays, because torch sends tensors to other processes as files of shared memory.
        points = host.flatten(0, len(lead) - 1).numpy()
        batch = self.batch.cpu().numpy() if isinstance(self.batch, Tensor) else self.batch
        entries = [()] * len(points) if batch is None else [(entry,) for entry in batch] * len(x)
        if len(entries) != len(points):
            raise ValueError(
                "Mapped: `batch` must have one entry for each batch element, but it has "
                f"{len(entries) // len(x)} for points with the sizes [n, *batch] = {tuple(lead)}."
            )
        rows = [(point, *entry) for point, entry in zip(points, entries, strict=True)]
        has_ranks = distributed.is_available() and distributed.is_initialized()
        seed = int(torch.randint(2**63 - 1, ())), distributed.get_rank() if has_ranks else 0
        futures, values = [], list[Any]()
        try:
            for start in range(0, len(rows), self.chunk):
                part = rows[start : start + self.chunk]
                task = (self.f, part, start, tuple(lead), seed, self.rng, os.getpid())
                futures.append(self.executor.submit(_evaluate, *task))
            for future in futures:
                values += future.result()
        finally:
            for future in futures:
                future.cancel()
        if len(shapes := {value.shape for value in values}) > 1:
            raise ValueError(f"Mapped: f's values must have one shape, but they have {shapes}.")
        numbers = torch.tensor(numpy.array(values, float), dtype=self.dtype or real)
        return numbers.to(x.device).reshape(*lead, *numbers.shape[1:])


def _evaluate(
    f: Callable[..., Any], part: list[tuple[Any, ...]], start: int, lead: tuple[int, ...],
    seed: tuple[int, int], rng: bool, caller: int,
) -> list[Any]:  # fmt: skip
    """Return f at some rows of ``lead``, from number ``start`` on, as arrays."""
    import numpy

    values = []
    for row, arguments in enumerate(part, start):
        words = numpy.random.SeedSequence((*seed, row)).generate_state(14)
        if os.getpid() != caller:  # threads share the generators with their caller
            numpy.random.seed(words[:4])  # noqa: NPY002 (f may use it)
            random.seed(words[4:8].tobytes())
            torch.default_generator.manual_seed(int(words[8]) << 32 | int(words[9]))
        try:
            value = numpy.asarray(f(*arguments, *[numpy.random.default_rng(words[10:])] * rng))
            if value.dtype.kind not in "biuf":
                raise TypeError(f"f must return numbers, but it returned {value!r:.99}")
        except Exception as error:
            index = tuple(int(i) for i in numpy.unravel_index(row, lead))
            point = numpy.array2string(numpy.asarray(arguments[0]), threshold=64, separator=", ")
            message = f"Mapped: f failed at row {index}, where x = {point}: {error!r}."
            raise RuntimeError(message) from error
        values.append(value)
    return values
