"""Find the processes that a test has left behind, by a mark in their environment, which children inherit."""

import os
import time

MARK = "CATLOG_TEST_MARK"


def marked(mark: str) -> dict[int, str]:
    """Return the running processes with this mark: number and command."""
    wanted, processes = f"{MARK}={mark}".encode(), {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with (
                open(f"/proc/{name}/environ", "rb") as environment,
                open(f"/proc/{name}/cmdline", "rb") as command,
            ):
                if wanted in environment.read().split(b"\0"):  # a zombie has none
                    processes[int(name)] = (
                        command.read().replace(b"\0", b" ").decode(errors="replace")[:100]
                    )
        except OSError:
            continue  # it has ended, or belongs to another user
    return processes


def leftovers(mark: str, patience: float = 30.0) -> dict[int, str]:
    """Return the processes with this mark that still run after ``patience`` seconds."""
    end = time.monotonic() + patience
    while (processes := marked(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    return processes
