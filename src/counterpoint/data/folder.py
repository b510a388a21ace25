"""Pictures in folders: one folder per class, a flat folder without labels, or Tiny ImageNet's own layout."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image

from counterpoint.data.decode import PICTURES, read_picture
from counterpoint.data.faults import existing_file, existing_folder
from counterpoint.data.samples import UNLABELLED, Labels, Samples
from counterpoint.names import hint

SPLITS = frozenset(["train", "training", "val", "valid", "validation", "dev", "test", "testing"])


def folder(
    path: str | Path,
    split: str | None = None,
    names: str | Path | None = None,
    labelled: bool | None = None,
) -> Samples:
    """Samples from a folder of pictures.

    path: the folder. split: read its folder of that name, as `path/train`.
    labelled: True: each folder is a class, and its pictures, at any depth, belong to it. False: all pictures
        at any depth, without labels. If not given, True where there are at least two folders of pictures.
    names: a JSON file with readable class names, `{"0": ["n01440764", "tench"], ...}` (ImageNet's class
        index) or `{"n01440764": "tench", ...}`.

    Classes are numbered in the sorted order of their folders. Splits side by side that share a class are
    numbered together, so a class that one of them lacks does not shift the others.
    A folder with `wnids.txt` and `words.txt` is read as Tiny ImageNet: the first word of each synset is the
    class name, labels of `val` come from `val_annotations.txt`, and those of `test` are unknown (-1).

    Keys are paths relative to `path`, in sorted order. Hidden files and files without the ending of a picture
    are passed over; links are followed. Pictures are decoded when asked for.
    Raises ValueError where there is no picture, or pictures lie both beside folders of pictures and in them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as top:
    ...     for name in ("cat", "dog"):
    ...         (Path(top) / name).mkdir()
    ...         Image.new("RGB", (2, 2)).save(f"{top}/{name}/1.png")
    ...     samples = folder(top)
    >>> samples.keys, samples.column().names, samples.column().values.tolist()
    (['cat/1.png', 'dog/1.png'], ['cat', 'dog'], [0, 1])
    """
    root = existing_folder(path)
    base = root if split is None else _split_folder(root, split)
    files = sorted(_pictures(base))
    if not files:
        raise ValueError(f"{base} has no pictures: no file ends in {', '.join(sorted(PICTURES))}")
    tiny = (root / "wnids.txt").is_file() and (root / "words.txt").is_file()
    if tiny and labelled is not False:
        labels = _tiny_imagenet_labels(root, split, files)
    else:
        labels = _folder_labels(root, split, base, files, labelled)
    if names is not None:
        labels = {column: _renamed(given, existing_file(names)) for column, given in labels.items()}
    keys = files if split is None else [f"{split}/{file}" for file in files]
    return Samples(
        name=root.name if split is None else f"{root.name}/{split}",
        keys=keys,
        picture=partial(file_picture, root, keys),
        labels=labels,
    )


def file_picture(root: Path, keys: Sequence[str], i: int) -> Image.Image:
    """The picture whose key is a path below `root`."""
    return read_picture(root / keys[i], keys[i])


def _split_folder(root: Path, split: str) -> Path:
    base = root / split
    if not base.is_dir():
        raise ValueError(f"{root} has no folder {split!r}: {hint(split, _subfolders(root))}")
    return base


def _subfolders(root: Path) -> list[str]:
    return sorted(e.name for e in os.scandir(root) if e.is_dir() and not e.name.startswith("."))


def _pictures(base: Path) -> Iterator[str]:
    """Paths of all pictures below `base`, relative to it, with forward slashes."""
    for place, folders, files in os.walk(base, followlinks=True, onerror=_raise):
        # A link to a folder that it lies in would be walked again and again.
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not _is_loop(place, f))
        below = Path(place).relative_to(base).as_posix()
        for file in files:
            if not file.startswith(".") and os.path.splitext(file)[1].lower() in PICTURES:
                yield file if below == "." else f"{below}/{file}"


def _is_loop(place: str, name: str) -> bool:
    path = os.path.join(place, name)
    return os.path.islink(path) and Path(os.path.realpath(place)).is_relative_to(os.path.realpath(path))


def _raise(error: OSError) -> None:
    raise ValueError(f"folder {error.filename} cannot be read: {error.strerror}") from error


def _folder_labels(
    root: Path, split: str | None, base: Path, files: Sequence[str], labelled: bool | None
) -> dict[str, Labels]:
    if labelled is False:
        return {}
    top = [file for file in files if "/" not in file]
    classes = {file.split("/", 1)[0] for file in files if "/" in file}
    if split is None and classes and classes <= SPLITS:
        raise ValueError(f"{root} has the splits {', '.join(sorted(classes))}: say which one with split=")
    if split is not None and classes:
        classes |= _classes_beside(root, split, classes)
    if labelled is None and (not classes or (len(classes) == 1 and not top)):
        return {}
    if top:
        inside = f"and the folder {sorted(classes)[0]!r}" if classes else "and no folders"
        raise ValueError(
            f"{base} has pictures ({top[0]!r}) {inside}: put each picture in the folder of its class, "
            "or read all without labels with labelled=False"
        )
    order = sorted(classes)
    number = {name: k for k, name in enumerate(order)}
    return {"label": Labels(torch.tensor([number[file.split("/", 1)[0]] for file in files]), order)}


def _classes_beside(root: Path, split: str, classes: set[str]) -> set[str]:
    """Classes of the other splits in `root`: of those folders that share a class with this one."""
    found: set[str] = set()
    for other in _subfolders(root):
        inside = set(_subfolders(root / other))
        if other != split and inside & classes:
            found |= {name for name in inside - classes if any(True for _ in _pictures(root / other / name))}
    return found


def _renamed(labels: Labels, file: Path) -> Labels:
    readable = _readable_names(file)
    missing = [name for name in labels.names if name not in readable]
    if missing:
        raise ValueError(
            f"{file} has no name for the class {missing[0]!r} "
            f"({len(missing)} of {len(labels.names)} classes missing)"
        )
    return Labels(labels.values, [readable[name] for name in labels.names], ids=labels.names)


def _readable_names(file: Path) -> dict[str, str]:
    try:
        given = json.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{file} must hold one JSON object, got {type(given).__name__}")
    names = {}
    for key, value in given.items():
        pair = value if isinstance(value, list) else [key, value]
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise ValueError(f'{file}: {key!r} must have a name or a pair ["folder", "name"], got {value!r}')
        names[pair[0]] = pair[1].replace("_", " ")
    return names


def _tiny_imagenet_labels(root: Path, split: str | None, files: Sequence[str]) -> dict[str, Labels]:
    if split is None:
        splits = [name for name in _subfolders(root) if name in SPLITS]
        raise ValueError(f"{root} is Tiny ImageNet: say which split with split=, {hint('', splits)}")
    wnids = sorted((root / "wnids.txt").read_text(encoding="utf-8").split())
    number = {wnid: k for k, wnid in enumerate(wnids)}
    annotations = _annotations(root / split / f"{split}_annotations.txt", number, files)
    values = []
    for file in files:
        place, _, name = file.rpartition("/")
        first = place.split("/", 1)[0]
        if first not in ("", "images") and first not in number:
            raise ValueError(f"{root / split / file}: {first!r} is not in wnids.txt")
        values.append(number.get(first, annotations.get(name, UNLABELLED)))
    return {"label": Labels(torch.tensor(values), _words(root / "words.txt", wnids), ids=wnids)}


def _annotations(file: Path, number: Mapping[str, int], files: Sequence[str]) -> dict[str, int]:
    """The label of each picture that an annotation file (picture, wnid, box) names."""
    if not file.is_file():
        return {}
    labels: dict[str, int] = {}
    for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        fields = text.split("\t")
        if len(fields) < 2 or fields[1] not in number:
            raise ValueError(f"{file}, line {line}: expected a picture and an id of wnids.txt, got {text!r}")
        labels[fields[0]] = number[fields[1]]
    there = {name.rpartition("/")[2] for name in files}
    missing = [name for name in labels if name not in there]
    if missing:
        raise ValueError(
            f"{file} names {missing[0]!r}, which is not there ({len(missing)} of {len(labels)} missing)"
        )
    return labels


def _words(file: Path, wnids: Sequence[str]) -> list[str]:
    """The first word of each synset, or all of its words where two classes begin alike."""
    lines = (line.split("\t", 1) for line in file.read_text(encoding="utf-8").splitlines())
    words = {pair[0]: pair[1].strip() for pair in lines if len(pair) == 2}
    missing = [wnid for wnid in wnids if wnid not in words]
    if missing:
        raise ValueError(
            f"{file} has no words for {missing[0]!r} ({len(missing)} of {len(wnids)} classes missing)"
        )
    first = [words[wnid].split(",")[0] for wnid in wnids]
    return [
        short if first.count(short) == 1 else words[wnid] for wnid, short in zip(wnids, first, strict=True)
    ]
