"""What a run's numbers depend on besides its settings: versions, device, source tree."""

import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch


def provenance() -> dict[str, Any]:
    """Return the versions, the machine, the command and the time of a run."""
    return {
        **environment(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "command": " ".join(["catlog", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def environment() -> dict[str, Any]:
    """Return what the last bits of a run's numbers depend on."""
    from catlog import __version__

    on_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpu else platform.processor() or "CPU"
    return {
        "catlog": __version__,
        "commit": _commit(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": device,
        "threads": torch.get_num_threads(),
    }


@cache
def _commit() -> str:
    """Return the commit of the source tree, or "" if catlog was not imported from one."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return result.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
