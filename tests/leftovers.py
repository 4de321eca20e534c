"""Which processes a test has left behind: they carry a mark in their environment, which children inherit."""

import os
import time

MARK = "CATLOG_TEST_MARK"


def marked(mark: str) -> dict[int, str]:
    """Living processes with this mark: number and command."""
    wanted, found = f"{MARK}={mark}".encode(), {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with (
                open(f"/proc/{name}/environ", "rb") as environment,
                open(f"/proc/{name}/cmdline", "rb") as command,
            ):
                if wanted in environment.read().split(b"\0"):  # a zombie has none
                    found[int(name)] = (
                        command.read().replace(b"\0", b" ").decode(errors="replace")[:100]
                    )
        except OSError:
            continue  # it has ended, or is another user's
    return found


def leftovers(mark: str, patience: float = 30.0) -> dict[int, str]:
    """The processes with this mark that are still there after a while."""
    end = time.monotonic() + patience
    while (found := marked(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    return found
