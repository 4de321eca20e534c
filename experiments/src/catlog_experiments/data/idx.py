"""The idx file format of MNIST."""

import math
import struct
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from .files import File, check_content, damaged, sha256, unpack


def read_idx(path: Path, file: File) -> UInt8[Tensor, "..."]:
    """Return the numbers in a gzipped idx file; raise a DataError if they differ from ``file``."""
    start = 4 + 4 * len(file.shape)
    data = unpack(path, start + math.prod(file.shape))
    if len(data) < start:
        raise damaged(path, f"it holds {len(data)} bytes, less than the header of {start}")
    magic = bytes([0, 0, 8, len(file.shape)])  # 8: uint8
    if data[:4] != magic:
        raise damaged(path, f"it starts with {data[:4].hex(' ')} instead of {magic.hex(' ')}")
    shape = struct.unpack_from(f">{len(file.shape)}I", data, 4)
    if shape != file.shape:
        raise damaged(path, f"its header says {shape} instead of {file.shape}")
    missing = start + math.prod(shape) - len(data)
    if missing:
        excess = f"{missing} bytes too few" if missing > 0 else "too many bytes"
        raise damaged(path, f"it has {excess} for its {shape}")
    check_content(path, sha256(data), file.content)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).reshape(shape)
