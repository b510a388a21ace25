"""Data sets that torchvision reads: CIFAR-10, CIFAR-100, STL-10, Fashion-MNIST, ImageNet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoint.data.folder import file_picture
from counterpoint.data.memory import tensor_picture
from counterpoint.data.samples import Labels, Samples
from counterpoint.names import hint


@dataclass(frozen=True)
class _Set:
    """What torchvision calls a set, how it names the splits, and what it looks for."""

    kind: str
    splits: tuple[str, ...]
    takes_train: bool
    files: str


SETS = {
    "cifar10": _Set("CIFAR10", ("train", "test"), True, "cifar-10-batches-py, from cifar-10-python.tar.gz"),
    "cifar100": _Set("CIFAR100", ("train", "test"), True, "cifar-100-python, from cifar-100-python.tar.gz"),
    "stl10": _Set(
        "STL10",
        ("train", "test", "unlabeled", "train+unlabeled"),
        False,
        "stl10_binary, from stl10_binary.tar.gz",
    ),
    "fashion_mnist": _Set(
        "FashionMNIST", ("train", "test"), True, "FashionMNIST/raw, with the four unpacked idx files"
    ),
    "imagenet": _Set(
        "ImageNet",
        ("train", "val"),
        False,
        "train and val with one folder per class and meta.bin, or the original archives with "
        "ILSVRC2012_devkit_t12.tar.gz",
    ),
}


def torchvision_set(name: str, root: str | Path, split: str = "train", download: bool = False) -> Samples:
    """Samples of a data set in torchvision's own layout, read by torchvision.

    name: cifar10, cifar100, stl10, fashion_mnist or imagenet.
    root: the folder that torchvision calls root.
    split: train or test; STL-10 has unlabeled and train+unlabeled too; ImageNet has train and val.
    download: fetch the files into `root` where they are absent (not for ImageNet, whose terms forbid it).

    All but ImageNet fill `Samples.tensor`; grey pictures get three equal channels. Keys are `SPLIT/ROW`, for
    ImageNet paths below `root`. Unlabelled samples of STL-10 have label -1. ImageNet's class names are the
    first word of each synset.
    Raises ValueError where files are absent or damaged, or the download fails, with what is looked for.

    >>> torchvision_set("cifar10", root="data", split="val")
    Traceback (most recent call last):
    ValueError: cifar10 has no split 'val': there are train, test
    """
    if name not in SETS:
        raise ValueError(f"unknown torchvision data set {name!r}: {hint(name, SETS)}")
    chosen = SETS[name]
    if split not in chosen.splits:
        raise ValueError(f"{name} has no split {split!r}: {hint(split, chosen.splits)}")
    if name == "imagenet" and download:
        raise ValueError(
            "imagenet cannot be downloaded: its terms ask for a personal account at image-net.org"
        )
    folder = Path(root).expanduser()
    if not download and not folder.is_dir():
        raise _absent(name, folder, f"there is no folder {folder}", download)
    try:
        dataset = _open(chosen, folder, split, download)
    except Exception as error:
        # torchvision and the unpicklers under it raise errors of many kinds; all of them come from the files.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _absent(name, folder, reason, download) from error
    if name == "imagenet":
        return _imagenet(dataset, folder, split)
    if not hasattr(dataset, "classes"):
        # torchvision passes over an absent stl10_binary/class_names.txt.
        raise _absent(name, folder, "the file of class names is not there", download)
    tensor = _channels_first(dataset.data)
    values = torch.as_tensor(
        np.asarray(dataset.labels if name == "stl10" else dataset.targets), dtype=torch.int64
    )
    if name == "stl10":
        # torchvision counts from 0 in uint8, where "no label" comes out as 255.
        values = torch.where(values == 255, -1, values)
    return Samples(
        name=f"{name}/{split}",
        keys=[f"{split}/{i}" for i in range(len(tensor))],
        picture=partial(tensor_picture, tensor),
        labels={"label": Labels(values, list(dataset.classes))},
        tensor=tensor,
    )


def _open(chosen: _Set, folder: Path, split: str, download: bool) -> Any:
    from torchvision import datasets

    kind = getattr(datasets, chosen.kind)
    if chosen.kind == "ImageNet":
        return kind(folder, split=split)
    which = {"train": split == "train"} if chosen.takes_train else {"split": split}
    return kind(folder, download=download, **which)


def _absent(name: str, folder: Path, reason: str, download: bool) -> ValueError:
    # torchvision's own hint names an argument of its own.
    reason = reason.removesuffix(" You can use download=True to download it").rstrip(".")
    if download:
        return ValueError(
            f"{name} cannot be downloaded into {folder}: {reason}; or put there: {SETS[name].files}"
        )
    offer = "" if name == "imagenet" else "give download=True, or "
    return ValueError(
        f"{name} cannot be read: {reason}; {offer}put {_where(folder, reason)}: {SETS[name].files}"
    )


def _where(folder: Path, reason: str) -> str:
    return "there" if str(folder) in reason else f"into {folder}"


def _channels_first(data: Any) -> Tensor:
    """torchvision's pictures, in any of its three shapes, as `(n, 3, h, w)` uint8."""
    pictures = torch.as_tensor(data)
    if pictures.ndim == 3:
        # Expanded, not copied: the three channels share memory.
        return pictures[:, None].expand(-1, 3, -1, -1)
    if pictures.shape[1] != 3:
        pictures = pictures.permute(0, 3, 1, 2)
    return pictures.contiguous()


def _imagenet(dataset: Any, root: Path, split: str) -> Samples:
    keys = [Path(os.path.relpath(path, root)).as_posix() for path, _ in dataset.samples]
    return Samples(
        name=f"imagenet/{split}",
        keys=keys,
        picture=partial(file_picture, root, keys),
        labels={"label": Labels(torch.tensor(dataset.targets), _first_words(dataset.classes), dataset.wnids)},
    )


def _first_words(classes: Sequence[Sequence[str]]) -> list[str]:
    """The first word of each synset, or all of its words where two classes begin alike."""
    first = [words[0] for words in classes]
    return [
        short if first.count(short) == 1 else ", ".join(words)
        for words, short in zip(classes, first, strict=True)
    ]
