"""Omniglot: zips of PNGs, decoded and shrunk once, then kept in the cache folder."""

import hashlib
import io
import re
import warnings
import zipfile
from pathlib import Path

import torch
from jaxtyping import Float, Int64, Shaped, UInt8
from torch import Tensor

from ..files.atomic import write_atomically
from .files import DataError, File, cache_folder, check_content, damaged, extra, file_sha256, sha256

NAME = re.compile(r"[^/]+/([^/]+)/character(\d+)/((\d+)_\d+\.png)")
Decoded = tuple[UInt8[Tensor, "n 784"], Int64[Tensor, " n"]]


def read_omniglot(
    path: Path, file: File, split: str
) -> tuple[Float[Tensor, "n 784"], Int64[Tensor, " n"]]:
    """Images in [0, 1], paper 1 and ink 0, and the number of each one's character.

    They come in the order of tensorflow-datasets, which the paper used: by the md5 of the split ("train" or "test") and the
    image's name. What the paper drops from either end is so the same here.

    What was decoded is kept in the cache folder under the zip's digest; a damaged or foreign file there is made again.
    """
    with extra():
        import numpy  # noqa: F401
    kept = cache_folder() / f"omniglot-{split}-{file_sha256(path)[:16]}.npz"
    decoded = restore(kept, file.shape[0])
    if decoded is None:
        decoded = decode(path, file, split)
        keep(kept, *decoded)
    return decoded[0].float() / 64, decoded[1]


def shrink(
    images: Shaped[Tensor, "n height width"], side: int = 28
) -> Float[Tensor, "n {side} {side}"]:
    """Bilinear between pixel centres and without antialiasing, as ``tf.image.resize`` does it.

    From 105 to 28 the weights are eighths, so that images of zeros and ones become multiples of 1/64, exactly.

    >>> shrink(torch.eye(105)[None])[0, :3, :3] * 64
    tensor([[34., 0., 0.],
            [ 0., 50., 0.],
            [ 0., 0., 50.]])
    """
    return torch.nn.functional.interpolate(
        images[:, None].float(), (side, side), mode="bilinear", align_corners=False
    )[:, 0]


def decode(path: Path, file: File, split: str) -> Decoded:
    """The images of a zip in 64ths, and their labels; every PNG and the content as a whole is checked."""
    with extra():
        import numpy as np
        from PIL import Image
    count, *size = file.shape
    most = (
        1000 + size[0] * size[1]
    )  # bytes of a PNG; one of 1 bit per pixel takes less than a quarter of that
    chunks, digests, keys, labels = [], [], [], []
    name = ""
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(".png"))
            if len(names) != count:
                raise damaged(path, f"it holds {len(names)} PNGs instead of {count}")
            for start in range(0, count, 1000):
                chunk = np.empty((min(1000, count - start), *size), dtype=bool)
                for row, name in zip(chunk, names[start : start + 1000], strict=True):
                    parts = NAME.fullmatch(name)
                    if parts is None:
                        raise damaged(
                            path, f"{name} is not named as folder/alphabet/character01/0001_01.png"
                        )
                    with archive.open(name) as stream:
                        data = stream.read(most + 1)
                    if len(data) > most:
                        raise damaged(path, f"{name} unpacks to more than {most} bytes")
                    image = Image.open(io.BytesIO(data), formats=["PNG"])
                    if (image.mode, image.height, image.width) != ("1", *size):
                        raise damaged(
                            path,
                            f"{name} is {image.height}x{image.width} of mode {image.mode}, not {size} of 1 bit",
                        )
                    row[...] = np.asarray(image)
                    alphabet, character, png, label = parts.groups()
                    digests.append(f"{sha256(data)}  {name}\n")
                    keys.append(f"{split}{alphabet}_{int(character) - 1}_{png}")
                    labels.append(int(label) - 1)
                chunks.append(
                    (64 * shrink(torch.from_numpy(chunk))).round().to(torch.uint8).flatten(1)
                )
    except DataError:
        raise
    except Exception as error:  # zipfile, its decompressors and Pillow have a dozen kinds for what a file may be like
        raise damaged(path, f"{name}: {error}" if name else error) from error
    check_content(path, sha256("".join(digests).encode()), file.content)
    order = torch.tensor(
        sorted(
            range(count),
            key=lambda i: hashlib.md5(keys[i].encode(), usedforsecurity=False).digest(),
        )
    )
    return torch.cat(chunks)[order], torch.tensor(labels)[order]


def restore(kept: Path, count: int) -> Decoded | None:
    """What :func:`keep` wrote; None if it is not there or not whole (npz has checksums)."""
    import numpy as np

    try:
        with open(kept, "rb") as stream:
            with zipfile.ZipFile(stream) as members:
                if sum(each.file_size for each in members.infolist()) > (784 + 8) * count + 1000:
                    return None  # foreign, and maybe without end
            stream.seek(0)
            with np.load(stream) as arrays:
                images, labels = arrays["images"], arrays["labels"]
    except Exception:  # whatever is wrong with it, it is made again
        return None
    if (
        images.shape != (count, 784)
        or images.dtype != np.uint8
        or labels.shape != (count,)
        or labels.dtype != np.int64
    ):
        return None
    return torch.from_numpy(images), torch.from_numpy(labels)


def keep(kept: Path, images: Tensor, labels: Tensor) -> None:
    """Write the decoded images; whole or not at all."""
    import numpy as np

    try:
        content = io.BytesIO()
        np.savez(content, images=images.numpy(), labels=labels.numpy())
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, content.getvalue())
    except OSError as error:
        warnings.warn(
            f"{kept} could not be written ({error}), so that Omniglot is decoded again each time. Name a folder that can be "
            "written to in the environment variable CATLOG_CACHE.",
            stacklevel=4,
        )
