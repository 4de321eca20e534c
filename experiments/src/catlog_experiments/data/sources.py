"""The published data files: where they are, and whether their content is the published one."""

import gzip
import hashlib
import os
import struct
import tomllib
import zlib
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.hub import download_url_to_file

SOURCES = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
URLS: dict[str, str] = SOURCES["urls"]
DIGESTS: dict[str, dict[str, str]] = SOURCES["sha256"]
EMBEDDED = "Or use the embedded images, which need no files: load('mnist-5000'), --data mnist-5000."


class DataError(OSError):
    """Raised if a data file is missing, damaged or another file, or if its download fails."""


def locate(data: str, name: str, folder: str | Path | None = None) -> Path:
    """Return the path of a file in ``folder`` or CATLOG_DATA; without either, download it."""
    folder = folder or os.environ.get("CATLOG_DATA")
    url = URLS[data] + name
    cache = os.environ.get("CATLOG_CACHE", "~/.cache/catlog")
    path = Path(folder or cache).expanduser() / data / name
    if path.is_file():
        return path
    if folder:
        raise DataError(
            f"{path} is missing. Put it there (from {url}), or pass another folder "
            "(`folder`, or the environment variable CATLOG_DATA), or set neither and it is "
            f"downloaded. {EMBEDDED}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        download_url_to_file(url, str(path), progress=False)
    except (OSError, RuntimeError) as error:  # no connection, a full disk
        raise DataError(
            f"{url} could not be downloaded: {error}. If this machine has no network, put the data "
            "sets into a folder and set the environment variable CATLOG_DATA to it (this file is "
            f"{data}/{name} there). {EMBEDDED}"
        ) from error
    return path


def damaged(path: Path, reason: object) -> DataError:
    """Return the error to raise if the file at ``path`` cannot be used."""
    return DataError(
        f"{path} is damaged: {reason}. Delete it and get it again (with neither `folder` nor "
        f"CATLOG_DATA set, it is downloaded). {EMBEDDED}"
    )


def check_content(path: Path, content: bytes, data: str) -> None:
    """Raise a DataError if the content of a file is not the published one."""
    digest, expected = hashlib.sha256(content).hexdigest(), DIGESTS[data][path.name]
    if digest != expected:
        raise damaged(path, f"its content has the sha256 {digest[:12]}… and not {expected[:12]}…")


def read_idx(path: Path, data: str) -> UInt8[Tensor, "..."]:
    """Return the numbers in a gzipped file of MNIST's format."""
    packed = path.read_bytes()
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error
    check_content(path, content, data)
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    start = 4 + 4 * dimensions
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)
