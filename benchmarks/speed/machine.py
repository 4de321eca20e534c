"""Abilities of this machine that can only be found by trying."""

import subprocess
import sys
from functools import cache

PRODUCT = """
import torch
a = torch.ones(64, 64, dtype=getattr(torch, {dtype!r}))
torch.mm(a, a), torch.nn.functional.linear(a, a, a[0]), torch.bmm(a[None], a[None])
"""


@cache
def multiplies(dtype: str = "bfloat16") -> bool:
    """Return whether the CPU multiplies matrices of this type; tried once, in a child process.

    A CPU that advertises AMX but masks it (common in virtual machines) ends the process with an
    illegal instruction.

    >>> multiplies("float32")
    True
    """
    command = [sys.executable, "-c", PRODUCT.format(dtype=dtype)]
    return subprocess.run(command, capture_output=True).returncode == 0
