"""The embedded images are read once for all experiments; tests/data reads them from their file."""

from collections.abc import Iterator
from functools import cache

import pytest

from catlog.data import images

read = cache(images.embedded)


@pytest.fixture(scope="module", autouse=True)
def images_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "embedded", lambda: tuple(tensor.clone() for tensor in read()))
        yield
