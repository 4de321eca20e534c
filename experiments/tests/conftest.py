"""The embedded images are read once; test_data.py reads them from their file."""

from collections.abc import Iterator
from functools import cache

import pytest

from catlog_experiments.data import images

read = cache(images.embedded)


@pytest.fixture(scope="module", autouse=True)
def images_read_once(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.module.__name__ == "test_data":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "embedded", lambda: tuple(tensor.clone() for tensor in read()))
        yield
