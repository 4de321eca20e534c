"""Omniglot: zips of PNGs, decoded and shrunk once, then cached."""

import hashlib
import io
import re
import zipfile
from pathlib import Path

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ..files.cache import cache_folder, load_or_make
from .files import DataError, File, check_content, damaged, file_sha256, sha256

NAME = re.compile(r"[^/]+/([^/]+)/character(\d+)/((\d+)_\d+\.png)")


def read_omniglot(
    path: Path, file: File, split: str
) -> tuple[Float[Tensor, "n 784"], Int64[Tensor, " n"]]:
    """Return images in [0, 1], paper 1 and ink 0, and the number of the character in each image.

    They are in the order of tensorflow-datasets, which the paper used: sorted by the md5 of the
    split ("train" or "test") and the image's name. So the images that the paper drops from either
    end are the same here.

    Decoded images are cached under the zip's digest. A damaged file there is replaced.
    """
    cached = cache_folder() / f"omniglot-{split}-{file_sha256(path)[:16]}.pt"
    decoded = load_or_make(cached, lambda: decode(path, file, split))
    return decoded["images"].float() / 64, decoded["labels"]


def shrink(
    images: Shaped[Tensor, "n height width"], side: int = 28
) -> Float[Tensor, "n {side} {side}"]:
    """Shrink images by bilinear interpolation without antialiasing, as ``tf.image.resize`` does.

    From 105 to 28 pixels the weights are eighths, so images of zeros and ones become exact
    multiples of 1/64.

    >>> shrink(torch.eye(105)[None])[0, :3, :3] * 64
    tensor([[34., 0., 0.],
            [ 0., 50., 0.],
            [ 0., 0., 50.]])
    """
    return torch.nn.functional.interpolate(
        images[:, None].float(), (side, side), mode="bilinear", align_corners=False
    )[:, 0]


def decode(path: Path, file: File, split: str) -> dict[str, Tensor]:
    """Return the ``images`` of a zip in 64ths, and their ``labels``; check all of its content."""
    import numpy as np
    from PIL import Image

    count, *size = file.shape
    limit = 1000 + size[0] * size[1]  # bytes; a PNG of 1 bit per pixel needs less than a quarter
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
                        data = stream.read(limit + 1)
                    if len(data) > limit:
                        raise damaged(path, f"{name} unpacks to more than {limit} bytes")
                    image = Image.open(io.BytesIO(data), formats=["PNG"])
                    if (image.mode, image.height, image.width) != ("1", *size):
                        kind = f"{image.height}x{image.width} of mode {image.mode}"
                        raise damaged(path, f"{name} is {kind}, not {size} of 1 bit")
                    row[...] = np.asarray(image)
                    alphabet, character, png, label = parts.groups()
                    digests.append(f"{sha256(data)}  {name}\n")
                    keys.append(f"{split}{alphabet}_{int(character) - 1}_{png}")
                    labels.append(int(label) - 1)
                small = 64 * shrink(torch.from_numpy(chunk))
                chunks.append(small.round().to(torch.uint8).flatten(1))
    except DataError:
        raise
    except Exception as error:  # zipfile, its decompressors and Pillow raise a dozen types
        raise damaged(path, f"{name}: {error}" if name else error) from error
    check_content(path, sha256("".join(digests).encode()), file.content)
    md5s = [hashlib.md5(key.encode(), usedforsecurity=False).digest() for key in keys]
    order = torch.tensor(sorted(range(count), key=md5s.__getitem__))
    return {"images": torch.cat(chunks)[order], "labels": torch.tensor(labels)[order]}
