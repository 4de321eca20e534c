"""The published data files: their mirrors, their digests, and where they are stored."""

import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from ..files.cache import cache_folder


class DataError(OSError):
    """Raised if a data file is missing, damaged or another file, or if its download fails."""


@dataclass(frozen=True)
class File:
    """A published file.

    Attributes:
        path: its path below the data folder; the first part is the name of the data set.
        shape: the shape of its content.
        sha256: the digest of the published file, checked after a download.
        content: the digest of its content, checked at every reading, so that a repacked file is
            accepted. For idx files this is the digest of the unpacked bytes, for Omniglot that of
            the lines ``<sha256 of the PNG>  <path>``, sorted by path.
    """

    path: str
    shape: tuple[int, ...]
    sha256: str
    content: str

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def urls(self) -> list[str]:
        return [mirror + self.name for mirror in MIRRORS[Path(self.path).parts[0]]]


IDX_FILES = (
    ("train-images-idx3-ubyte.gz", (60000, 28, 28)),
    ("train-labels-idx1-ubyte.gz", (60000,)),
    ("t10k-images-idx3-ubyte.gz", (10000, 28, 28)),
    ("t10k-labels-idx1-ubyte.gz", (10000,)),
)


def _idx_files(folder: str, *digests: str) -> tuple[File, ...]:
    """Return a set in MNIST's format; of every file, both digests are given."""
    return tuple(
        File(f"{folder}/{name}", shape, *digests[2 * i : 2 * i + 2])
        for i, (name, shape) in enumerate(IDX_FILES)
    )


FILES: dict[str, tuple[File, ...]] = {
    "mnist": _idx_files(
        "mnist",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion-mnist": _idx_files(
        "fashion-mnist",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "omniglot": (
        File(
            "omniglot/images_background.zip",
            (19280, 105, 105),
            "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
            "deaa02f758afda524b3a045c7af40311f2d9ded3e2a39f715ece8470d474bc6a",
        ),
        File(
            "omniglot/images_evaluation.zip",
            (13180, 105, 105),
            "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
            "3d5e035f27423c362bf9a181af649b43cda64c1008f842177ddc5203269c901e",
        ),
    ),
}

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


def locate(file: File, folder: str | Path | None = None) -> Path:
    """Return the path of ``file`` in ``folder`` or CATLOG_DATA; without either, download it."""
    folder = folder or os.environ.get("CATLOG_DATA")
    if not folder:
        return download(file)
    path = Path(folder).expanduser() / file.path
    if not path.is_file():
        raise DataError(
            f"{path} is missing. Put it there (from {file.urls[0]}), or pass another folder "
            "(`folder`, or the environment variable CATLOG_DATA), or set neither and it is "
            f"downloaded. {EMBEDDED}"
        )
    return path


def download(file: File) -> Path:
    """Return the path of ``file`` in the cache folder; download it unless its digest is right."""
    import pooch  # type: ignore[import-untyped]

    target = cache_folder() / file.path
    failures = []
    for url in file.urls:
        try:
            digest = f"sha256:{file.sha256}"
            return Path(pooch.retrieve(url, digest, fname=target.name, path=target.parent))
        except (OSError, ValueError) as error:  # no connection, a full disk; a wrong digest
            failures.append(f"{url}: {error}")
    raise DataError(
        f"{target} could not be downloaded. If this machine has no network, put the data sets "
        "into a folder and set the environment variable CATLOG_DATA to it (this file is "
        f"{file.path} there). {EMBEDDED}\n" + "\n".join(failures)
    )


def damaged(path: Path, reason: object) -> DataError:
    """Return the error to raise if the file at ``path`` cannot be used."""
    if isinstance(reason, PermissionError):
        return DataError(
            f"{path} may not be read ({reason}). Change its permissions, or use another folder. "
            f"{EMBEDDED}"
        )
    return DataError(
        f"{path} is damaged: {reason}. Delete it and get it again (with neither `folder` nor "
        f"CATLOG_DATA set, it is downloaded). {EMBEDDED}"
    )


def unpack(path: Path, limit: int) -> bytes:
    """Return the content of a gzip file, cut after ``limit`` + 1 bytes."""
    try:
        with gzip.open(path) as stream:
            return stream.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error


def check_content(path: Path, digest: str, expected: str) -> None:
    """Raise a DataError if the content of a file is not the published one."""
    if digest != expected:
        raise damaged(
            path, f"its content has the sha256 {digest[:12]}… and not {expected[:12]}… as published"
        )


def sha256(data: bytes) -> str:
    """Return the digest of ``data``."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the digest of a file of any size."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise damaged(path, error) from error
