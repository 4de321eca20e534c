"""The data sets: every fault of a file is named, and the preprocessing is that of the paper."""

import gzip
import hashlib
import io
import os
import re
import struct
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from catlog_experiments.data import DataError, Images, addition, for_autoencoder, load
from catlog_experiments.data.omniglot import read_omniglot, shrink
from catlog_experiments.data.sources import DIGESTS, URLS, locate, read_idx


def damaged(name):
    """Expect an error that says what is damaged and what to do."""
    remedy = r"Delete it and get it again.*load\('mnist-5000'\)"
    return pytest.raises(DataError, match=f"{re.escape(name)} is damaged: .+{remedy}")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CATLOG_CACHE", str(folder))
    monkeypatch.delenv("CATLOG_DATA", raising=False)
    return folder


@pytest.fixture(scope="module")
def embedded():
    return load()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


NAME = "t10k-images-idx3-ubyte.gz"
IDX = b"\0\0\x08\3" + struct.pack(">3I", 3, 2, 2) + bytes(range(12))


@pytest.fixture
def small(monkeypatch):
    """A small file in place of one of MNIST's."""
    monkeypatch.setitem(DIGESTS["mnist"], NAME, sha256(IDX))
    return gzip.compress(IDX)


def flipped(data):
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES = {
    "truncated": lambda packed: packed[:-5],
    "flipped": flipped,
    "rubbish": lambda packed: b"rubbish" * 100,
    "empty": lambda packed: b"",
}


@pytest.mark.parametrize("fault", [*DAMAGES, "not packed", "other content"])
def test_a_damaged_gzip_file_is_named(fault, tmp_path, small):
    others = {"not packed": lambda packed: IDX, "other content": lambda packed: gzip.compress(b"?")}
    (tmp_path / NAME).write_bytes((DAMAGES | others)[fault](small))
    with damaged(NAME):
        read_idx(tmp_path / NAME, "mnist")


def test_the_argument_precedes_the_environment_variable(tmp_path, monkeypatch, small):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / NAME).write_bytes(small)
    path = locate("mnist", NAME, str(tmp_path))
    assert torch.equal(read_idx(path, "mnist"), torch.arange(12).byte().reshape(3, 2, 2))
    monkeypatch.setenv("CATLOG_DATA", str(tmp_path))
    assert locate("mnist", NAME) == path
    with pytest.raises(DataError, match=rf"elsewhere/mnist/{NAME} is missing"):
        locate("mnist", NAME, tmp_path / "elsewhere")


@pytest.mark.parametrize("name", DIGESTS)
def test_missing_files_are_named(tmp_path, name):
    remedy = r"Put it there \(from http.*CATLOG_DATA.*downloaded.*load\('mnist-5000'\)"
    with pytest.raises(DataError, match=rf"{name}/.*z.* is missing\. {remedy}"):
        load(name, tmp_path)


def test_files_are_downloaded_once(tmp_path, cache, monkeypatch, small):
    (tmp_path / NAME).write_bytes(small)
    monkeypatch.setitem(URLS, "mnist", f"file://{tmp_path}/")
    path = locate("mnist", NAME)
    assert path == cache / "mnist" / NAME
    assert read_idx(path, "mnist").shape == (3, 2, 2)
    (tmp_path / NAME).unlink()
    assert locate("mnist", NAME) == path  # and not again
    path.unlink()
    with pytest.raises(DataError, match=r"t10k.* could not be downloaded.*no network.*CATLOG_DATA"):
        locate("mnist", NAME)
    assert os.listdir(cache / "mnist") == []


# Omniglot

ZIP = "images_background.zip"
DRAWN = np.random.default_rng(0).random((4, 105, 105)) > 0.5


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).convert("1").save(stream, "png")
    return stream.getvalue()


@pytest.fixture
def drawings(tmp_path, monkeypatch):
    """The path of a small Omniglot."""
    names = [
        f"images_background/Tengwar/character{i // 2 + 1:02}/{i // 2 + 7:04}_{i % 2 + 1:02}.png"
        for i in range(4)
    ]
    pngs = {name: png(pixels) for name, pixels in zip(names, DRAWN, strict=True)}
    with zipfile.ZipFile(tmp_path / ZIP, "w") as archive:
        archive.writestr("images_background/", "")
        for name in reversed(names):
            archive.writestr(name, pngs[name])
    content = sha256("".join(f"{sha256(data)}  {name}\n" for name, data in pngs.items()).encode())
    monkeypatch.setitem(DIGESTS["omniglot"], ZIP, content)
    return tmp_path / ZIP


def test_omniglot_is_read_in_the_order_of_the_paper(drawings):
    pixels, labels = read_omniglot(drawings, "train")
    keys = [f"trainTengwar_{i // 2}_{i // 2 + 7:04}_{i % 2 + 1:02}.png" for i in range(4)]
    order = sorted(range(4), key=lambda i: hashlib.md5(keys[i].encode()).hexdigest())
    assert order != [0, 1, 2, 3]
    assert torch.equal(pixels, shrink(torch.from_numpy(DRAWN[order])).flatten(1))
    assert labels.tolist() == [i // 2 + 6 for i in order]


@pytest.mark.parametrize("fault", DAMAGES)
def test_a_damaged_zip_is_named(fault, drawings):
    drawings.write_bytes(DAMAGES[fault](drawings.read_bytes()))
    with damaged(ZIP):
        read_omniglot(drawings, "train")


# the embedded images


def test_embedded_images_are_split_by_digit(embedded):
    assert embedded.train.shape == (4000, 784)
    assert embedded.train.dtype == embedded.test.dtype == torch.float32
    assert embedded.train_labels.bincount().tolist() == [400] * 10
    assert embedded.test_labels.bincount().tolist() == [100] * 10
    assert len(torch.cat([embedded.train, embedded.test]).unique(dim=0)) == 5000


def test_nobody_changes_the_images_of_others():
    load().train.zero_()
    assert load().train.any()


# the paper's preparation


def fake(name, train, test):
    def numbered(count):
        return torch.linspace(0, 1, count)[:, None].expand(-1, 784), torch.zeros(count).long()

    return Images(name, *numbered(train), *numbered(test))


@pytest.mark.parametrize(
    ("name", "sizes", "train", "test"),
    [
        ("mnist", (60000, 10000), slice(60000), slice(1000, 10000)),
        ("fashion-mnist", (60000, 10000), slice(60000), slice(1000, 10000)),
        ("omniglot", (19280, 13180), slice(19200), slice(1300, 13100)),
        ("mnist-5000", (4000, 1000), slice(4000), slice(1000)),
    ],
)
def test_autoencoders_get_the_images_of_the_paper(name, sizes, train, test):
    images = fake(name, *sizes)
    expected = images.train[train], images.test[test]
    if name != "fashion-mnist":
        expected = tuple((part > 0.5).float() for part in expected)
    assert all(map(torch.equal, for_autoencoder(images), expected))


@pytest.mark.parametrize("digits", [1, 16, 100])
def test_sequences_use_every_image_once(embedded, digits):
    data = addition(embedded, digits)
    for part, pixels, labels in [
        (data.train, embedded.train, embedded.train_labels),
        (data.test, embedded.test, embedded.test_labels),
    ]:
        assert len(part) == len(pixels) // (10 * digits) * 10
        assert len(part.index.unique()) == part.index.numel()
        assert torch.equal(part.labels, labels[part.index])
        assert part.images.data_ptr() == pixels.data_ptr()
        rows = torch.tensor([3, 0])
        assert torch.equal(part.batch(rows).flatten(2), pixels[part.index[rows]])


def test_addition_depends_on_its_seed_and_refuses_long_sequences(embedded):
    data, order = addition(embedded, 4), torch.randperm(4000, generator=torch.manual_seed(0))
    assert data.train.index[0].tolist() == order[:4].tolist()
    assert not torch.equal(addition(embedded, 4, seed=1).train.index, data.train.index)
    for digits in (0, 101):
        with pytest.raises(ValueError, match=rf"1 and 100, but {digits} was given.*1000 test"):
            addition(embedded, digits)
