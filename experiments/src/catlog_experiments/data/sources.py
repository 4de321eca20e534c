"""The published data files: their mirrors, the digests of their contents, where they are stored."""

import gzip
import hashlib
import os
import struct
import zlib
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.hub import download_url_to_file


class DataError(OSError):
    """Raised if a data file is missing, damaged or another file, or if its download fails."""


# The digest of the content of every file, so that a repacked file is accepted: of an idx file the
# unpacked bytes, of Omniglot the lines "<sha256 of the PNG>  <path>", sorted by path.
DIGESTS: dict[str, dict[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte.gz":
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte.gz":
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte.gz":
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte.gz":
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz":
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte.gz":
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte.gz":
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte.gz":
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    "omniglot": {
        "images_background.zip":
            "deaa02f758afda524b3a045c7af40311f2d9ded3e2a39f715ece8470d474bc6a",
        "images_evaluation.zip":
            "3d5e035f27423c362bf9a181af649b43cda64c1008f842177ddc5203269c901e",
    },
}  # fmt: skip

MIRRORS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": (
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    "omniglot": (
        "https://github.com/brendenlake/omniglot/raw/master/python/",
        "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    ),
}

EMBEDDED = "Or use the embedded images, which need no files: load('mnist-5000'), --data mnist-5000."


def cache_folder() -> Path:
    """Return CATLOG_CACHE, else ``catlog`` in XDG_CACHE_HOME, else ~/.cache/catlog."""
    chosen = os.environ.get("CATLOG_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "catlog"
    return Path(chosen or default).expanduser()


def locate(data: str, name: str, folder: str | Path | None = None) -> Path:
    """Return the path of a file in ``folder`` or CATLOG_DATA; without either, download it."""
    folder = folder or os.environ.get("CATLOG_DATA")
    urls = [mirror + name for mirror in MIRRORS[data]]
    path = Path(folder).expanduser() / data / name if folder else cache_folder() / data / name
    if path.is_file():
        return path
    if folder:
        raise DataError(
            f"{path} is missing. Put it there (from {urls[0]}), or pass another folder "
            "(`folder`, or the environment variable CATLOG_DATA), or set neither and it is "
            f"downloaded. {EMBEDDED}"
        )
    failures = []
    path.parent.mkdir(parents=True, exist_ok=True)
    for url in urls:
        try:
            download_url_to_file(url, str(path), progress=False)
            return path
        except (OSError, RuntimeError) as error:  # no connection, a full disk
            failures.append(f"{url}: {error}")
    raise DataError(
        f"{path} could not be downloaded. If this machine has no network, put the data sets "
        "into a folder and set the environment variable CATLOG_DATA to it (this file is "
        f"{data}/{name} there). {EMBEDDED}\n" + "\n".join(failures)
    )


def damaged(path: Path, reason: object) -> DataError:
    """Return the error to raise if the file at ``path`` cannot be used."""
    return DataError(
        f"{path} is damaged: {reason}. Delete it and get it again (with neither `folder` nor "
        f"CATLOG_DATA set, it is downloaded). {EMBEDDED}"
    )


def unpacked(path: Path) -> bytes:
    """Return the content of a gzip file."""
    try:
        with gzip.open(path) as stream:
            return stream.read()
    except PermissionError as error:
        raise DataError(f"{path} may not be read: {error}. Change its permissions.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error


def check_content(path: Path, content: bytes, data: str) -> None:
    """Raise a DataError if the content of a file is not the published one."""
    digest, expected = hashlib.sha256(content).hexdigest(), DIGESTS[data][path.name]
    if digest != expected:
        raise damaged(path, f"its content has the sha256 {digest[:12]}… and not {expected[:12]}…")


def read_idx(path: Path, data: str) -> UInt8[Tensor, "..."]:
    """Return the numbers in a gzipped file of MNIST's format."""
    content = unpacked(path)
    check_content(path, content, data)
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    start = 4 + 4 * dimensions
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)
