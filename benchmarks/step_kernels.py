"""Where the time of a captured training step goes on a GPU: its kernels, one after the other.

    python -m benchmarks.step_kernels       # needs a GPU; writes two files in results/speed
    python -m benchmarks.step_kernels --methods "ReinMax(8)" "SlopeCateR(8, corrections=1)"

The steps are those of `benchmarks.race`. They are timed in turn, 1,500 at a time, and the median of
five rounds is written to captured_steps_cuda.csv. Then one step of each is profiled, and
captured_kernels_cuda.csv has its kernels: start and duration in microseconds.
"""

from functools import partial
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from catlog_experiments.dvae import DVAETask

from .command_line import add_options, argument_parser
from .race import made
from .tables import RESULTS, Row, Table
from .turns import seconds_in_turns

METHODS = ["ReinMax(8)", "SlopeCateR(8, corrections=1)", "SlopeCateR(8, corrections=2)"]
METHODS += ["SlopeCateR(8)"]
ROUNDS, STEPS = 5, 1500


def steps_of(task: DVAETask, count: int, first: int = 0) -> None:
    """Make training steps, from the batch of iteration ``first`` on."""
    for i in range(first, first + count):
        task.step(i)


def step_times(tasks: dict[str, DVAETask]) -> list[Row]:
    """Return the milliseconds of a step of each task, the median of rounds in turn."""
    calls = {name: partial(steps_of, task, STEPS) for name, task in tasks.items()}
    rows = []
    for name, seconds in seconds_in_turns(calls, ROUNDS).items():
        ms = [1000 * value / STEPS for value in seconds]
        rows.append({"method": name, "ms": median(ms), "least": min(ms), "most": max(ms)})
    return rows


def kernels(name: str, task: DVAETask) -> list[Row]:
    """Return the kernels of the second of three profiled steps."""
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for i in range(1, 4):
            task.step(i)
        torch.cuda.synchronize()
    events = [event for event in trace.events() if event.device_type.name == "CUDA"]
    events.sort(key=lambda event: event.time_range.start)
    count = len(events) // 3
    step = events[count : 2 * count]
    begin = step[0].time_range.start
    return [
        {
            "method": name,
            "kernel": number,
            "start": event.time_range.start - begin,
            "us": event.time_range.elapsed_us(),
            "name": event.name[:100],
        }
        for number, event in enumerate(step)
    ]


def main() -> None:
    parser = argument_parser(__doc__)
    add_options(parser, methods=METHODS, folder=RESULTS / "speed")
    args = parser.parse_args()
    tasks = {name: made(name, 0, "mnist", "cuda") for name in args.methods}
    times = Table(args.folder / "captured_steps_cuda.csv", ("method",))
    times.add(step_times(tasks), "milliseconds of a step")
    profiles = Table(args.folder / "captured_kernels_cuda.csv", ("method",))
    for name, task in tasks.items():
        profiles.add(kernels(name, task), f"kernels of {name}")


if __name__ == "__main__":
    main()
