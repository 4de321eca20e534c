"""CUDA graphs: steps on a stream of their own, and a capture that leaves no trace if it fails."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class CudaGraphs:
    """A stream for steps that are not captured yet, and their capture.

    The nodes that accumulate gradients remember the stream of their first step. That must not be
    the default stream, on which nothing can be captured.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run the body on that stream, after all that came before and before all that comes."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)

    def capture(self, step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Return the graph of a step, and the buffer that holds its result after a replay."""
        graph = torch.cuda.CUDAGraph()
        with _captured(graph):
            result = step()
        return graph, result


@contextmanager
def _captured(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture the body in ``graph``, and restore torch's state after a failure.

    After a failed capture torch stays on the capture's stream, and its generator refuses to draw
    because it is still registered with the graph. Old graphs are collected before the capture: to
    free one during the capture would invalidate it.
    """
    stream = torch.cuda.current_stream()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    cause: Exception | None = None
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            try:
                yield
            except Exception as raised:
                cause = raised
                raise
    except Exception as raised:
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(generator.clone_state())
        graph.reset()
        cause = cause or raised
        raise RuntimeError(
            "compiled_step: the step runs, but it could not be captured in a CUDA graph: "
            f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''} Remove "
            "what waits for the GPU (.item(), branches on values, some calls of linear algebra), "
            "or make the optimiser without capturable=True for a step that is not captured."
        ) from cause
    finally:
        if collects:
            gc.enable()
