"""Omniglot: zips of PNGs, decoded and shrunk."""

import hashlib
import io
import re
import zipfile
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float, Int64, Shaped, UInt8
from torch import Tensor

from .sources import check_content, damaged

NAME = re.compile(r"[^/]+/([^/]+)/character(\d+)/((\d+)_\d+\.png)")


def read_omniglot(path: Path, split: str) -> tuple[Float[Tensor, "n 784"], Int64[Tensor, " n"]]:
    """Return images in [0, 1], paper 1 and ink 0, and the number of the character in each image.

    They are in the order of tensorflow-datasets, which the paper used: sorted by the md5 of the
    split ("train" or "test") and the image's name. So the images that the paper drops from either
    end are the same here.
    """
    images, labels = decode(path, split)
    return images.float() / 64, labels.clone()


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


@cache  # 3 seconds, which the runs of a sweep spend once
def decode(path: Path, split: str) -> tuple[UInt8[Tensor, "n 784"], Int64[Tensor, " n"]]:
    """Return the images of a zip in 64ths, and their labels; check all of its content."""
    import numpy as np
    from PIL import Image

    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(".png"))
            files = {name: archive.read(name) for name in names}
    except Exception as error:  # zipfile and its decompressors raise a dozen types
        raise damaged(path, error) from error
    lines = (f"{hashlib.sha256(file).hexdigest()}  {name}\n" for name, file in files.items())
    check_content(path, "".join(lines).encode(), "omniglot")
    images, labels, keys = [], [], []
    for name, file in files.items():
        pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(file))))
        images.append((64 * shrink(pixels[None])).round().to(torch.uint8).flatten())
        alphabet, character, png, label = NAME.fullmatch(name).groups()  # type: ignore[union-attr]
        key = f"{split}{alphabet}_{int(character) - 1}_{png}"
        keys.append(hashlib.md5(key.encode(), usedforsecurity=False).digest())
        labels.append(int(label) - 1)
    order = torch.tensor(sorted(range(len(keys)), key=keys.__getitem__))
    return torch.stack(images)[order], torch.tensor(labels)[order]
