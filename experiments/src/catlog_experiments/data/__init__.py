"""The paper's data sets: images for autoencoders, and MNIST addition.

``load("mnist-5000")`` needs no files and no network.
The other sets are read from a folder (an argument, else the environment variable ``CATLOG_DATA``).
Without a folder they are downloaded once into ``CATLOG_CACHE`` (by default ``~/.cache/catlog``).
"""

from .addition import Addition, Sequences, addition
from .images import NAMES, Images, binarise, for_autoencoder, load
from .sources import DataError

__all__ = [
    "NAMES", "Addition", "DataError", "Images", "Sequences", "addition", "binarise",
    "for_autoencoder", "load",
]  # fmt: skip
