"""The same identities seen by several cameras, or drawn by several hands: told by the names of the files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from PIL import Image

from counterpoint.data.decode import PICTURES, read_picture
from counterpoint.data.faults import OnError, check_on_error, existing_file, settle
from counterpoint.data.folder import folder
from counterpoint.data.samples import UNLABELLED, Labels, Samples
from counterpoint.names import hint

IDENTITY, CAMERA = "identity", "camera"
SPLITS = ("train", "val", "test")
SPLIT_SEED = 20220714  # fixed, so that every run holds back the same identities


@dataclass(frozen=True)
class Layout:
    """How a data set names its pictures.

    pattern: a regular expression for the end of the path, with the groups `identity` and `camera`; any other
        named group becomes a label column too.
    nobody: identities that stand for no one, such as a distractor.
    folders: the folder of each split, where the data set calls it otherwise.
    """

    pattern: str
    nobody: frozenset[str] = frozenset()
    folders: Mapping[str, str] | None = None


LAYOUTS = {
    # 1_001_2_05.png: camera pair 1, person 1 of it, camera 2, fifth picture.
    "cuhk03": Layout(r"(?P<identity>\d+_\d+)_(?P<camera>\d+)_\d+\.\w+"),
    # 0002_c1s1_000451_03.jpg: person 2, camera 1. -1 is a bad box, 0000 a distractor.
    "market1501": Layout(
        r"(?P<identity>-1|\d{4})_c(?P<camera>\d+)s\d+_\d+_\d+\.\w+",
        nobody=frozenset(["-1", "0000"]),
        folders={"train": "bounding_box_train", "test": "bounding_box_test"},
    ),
    # Greek/character05/0394_12.png: drawing 12 of a character, all by different drawers.
    "omniglot": Layout(r"(?P<identity>(?P<alphabet>[^/]+)/[^/]+)/\d+_(?P<camera>\d+)\.\w+"),
}


def cameras(
    path: str | Path,
    layout: str | None = None,
    pattern: str | None = None,
    split: str | None = None,
    shares: tuple[float, float] = (0.7, 0.15),
    on_error: OnError = "stop",
) -> Samples:
    """Samples whose file names say which identity a picture shows, and by which camera.

    path: a folder of pictures, at any depth, or a zip file of them, which is read into memory.
    layout: "cuhk03", "market1501" or "omniglot"; or `pattern`, a regular expression of your own for the end
        of a picture's path, with the named groups `identity` and `camera`, such as
        `(?P<identity>[^/]+)/(?P<camera>front|back)_\\d+\\.jpg`.
    split: a folder of that name (train and test of market1501 are its bounding_box_train and _test). Where
        there is none, "train", "val" or "test": identities are dealt out by `shares`, always the same.
    shares: of the identities that go to train and to val; test gets the others.
    on_error: what a picture does whose name does not fit: 'stop', or 'skip' to leave it out with a warning
        that gives the number.

    Label columns: identity (the default), camera, and those of other named groups (omniglot: alphabet).
    Distractors of market1501 have no identity (-1).

    Raises ValueError for an unknown layout, a pattern without the two groups, a split that is neither a
    folder nor one of the three, and where no picture is left.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as top:
    ...     for name in ("1_001_1_01", "1_001_2_01", "1_002_1_01"):
    ...         Image.new("RGB", (2, 4)).save(f"{top}/{name}.png")
    ...     samples = cameras(top, layout="cuhk03")
    >>> samples.column("identity").values.tolist(), samples.column("camera").values.tolist()
    ([0, 0, 1], [0, 1, 0])
    """
    check_on_error(on_error)
    known = _layout(layout, pattern)
    samples, word = _pictures(Path(path).expanduser(), split, known)
    matches = [re.fullmatch(f"(?:.*/)?{known.pattern}", key) for key in samples.keys]
    settle(
        [
            f"the name {key!r} does not fit {layout or 'the pattern'}"
            for key, match in zip(samples.keys, matches, strict=True)
            if match is None
        ],
        len(matches),
        str(path),
        on_error,
    )
    good = [i for i, match in enumerate(matches) if match is not None]
    groups = [match.groupdict() for match in matches if match is not None]
    columns = [IDENTITY, CAMERA, *(name for name in groups[0] if name not in (IDENTITY, CAMERA))]
    nobody = {IDENTITY: known.nobody}
    samples = replace(
        samples.subset(good),
        labels={
            name: _numbered([g[name] for g in groups], nobody.get(name, frozenset())) for name in columns
        },
    )
    return samples if word is None else _dealt(samples, word, shares)


def side_by_side(samples: Mapping[str, Samples]) -> Samples:
    """The samples of several cameras as one, with a label column `camera` that has the keys of the mapping.

    Other label columns stay where all have them with the same names; so do captions and picture tensors where
    all have them.

    Raises ValueError where there are none, or two have a key in common.

    >>> from counterpoint.data.shapes import shapes
    >>> both = side_by_side({str(c): shapes("test", count=2, size=16, camera=c) for c in (0, 1)})
    >>> both.column("identity").values.tolist(), both.column("camera").values.tolist()
    ([0, 1, 0, 1], [0, 0, 1, 1])
    """
    parts = list(samples.values())
    if not parts:
        raise ValueError("side_by_side needs the samples of at least one camera, got none")
    keys = [key for part in parts for key in part.keys]
    if len(set(keys)) < len(keys):
        raise ValueError(f"two cameras of {', '.join(samples)} have a sample with the same key")
    places = [(part, i) for part in parts for i in range(len(part))]
    labels = {
        name: Labels(torch.cat([part.labels[name].values for part in parts]), first.names)
        for name, first in parts[0].labels.items()
        if all(name in part.labels and list(part.labels[name].names) == list(first.names) for part in parts)
    }
    camera = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part) for part in parts]))
    captions = [part.captions for part in parts if part.captions is not None]
    tensors = [part.tensor for part in parts if part.tensor is not None]
    same_size = len({tensor.shape[1:] for tensor in tensors}) == 1
    return Samples(
        name=parts[0].name,
        keys=keys,
        picture=partial(_of_place, places),
        labels={**labels, CAMERA: Labels(camera, list(samples))},
        captions=[text for part in captions for text in part] if len(captions) == len(parts) else None,
        tensor=torch.cat(tensors) if len(tensors) == len(parts) and same_size else None,
    )


def _of_place(places: Sequence[tuple[Samples, int]], i: int) -> Image.Image:
    part, row = places[i]
    return part.picture(row)


def _layout(layout: str | None, pattern: str | None) -> Layout:
    if (layout is None) == (pattern is None):
        raise ValueError(
            f"give a layout, one of {', '.join(LAYOUTS)}, or a pattern, not "
            f"{'both' if layout is not None else 'neither'}"
        )
    if layout is not None:
        if layout not in LAYOUTS:
            raise ValueError(f"unknown layout {layout!r}: {hint(layout, LAYOUTS)}")
        return LAYOUTS[layout]
    try:
        groups = re.compile(str(pattern)).groupindex
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} is not a regular expression: {error}") from None
    for name in (IDENTITY, CAMERA):
        if name not in groups:
            raise ValueError(f"pattern {pattern!r} has no group (?P<{name}>...)")
    return Layout(str(pattern))


def _pictures(path: Path, split: str | None, layout: Layout) -> tuple[Samples, str | None]:
    """The pictures of a split, and the word of it where it still has to be dealt out."""
    if path.suffix.lower() == ".zip":
        return _in_zip(existing_file(path)), _word(path, split)
    place = (layout.folders or {}).get(split or "", split)
    if place is not None and (path / place).is_dir():
        return folder(path, split=place, labelled=False), None
    if layout.folders and split in layout.folders and path.is_dir():
        raise ValueError(f"{path} has no folder {place!r} for split {split!r}")
    return folder(path, labelled=False), _word(path, split)


def _word(path: Path, split: str | None) -> str | None:
    if split is not None and split not in SPLITS:
        raise ValueError(
            f"{path} has no folder {split!r}, and identities are dealt out to {', '.join(SPLITS)}"
        )
    return split


def _in_zip(path: Path) -> Samples:
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(
                name
                for name in archive.namelist()
                if Path(name).suffix.lower() in PICTURES and not Path(name).name.startswith(".")
            )
            stored = [archive.read(name) for name in names]
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"{path} is not a whole zip file: {error}") from None
    if not names:
        raise ValueError(f"{path} has no pictures: no file ends in {', '.join(sorted(PICTURES))}")
    return Samples(path.stem, names, partial(_stored, stored, names))


def _stored(stored: Sequence[bytes], names: Sequence[str], i: int) -> Image.Image:
    return read_picture(stored[i], names[i])


def _numbered(values: Sequence[str | None], nobody: frozenset[str]) -> Labels:
    names = sorted({value for value in values if value is not None} - nobody)
    number = {name: k for k, name in enumerate(names)}
    return Labels(torch.tensor([number.get(value or "", UNLABELLED) for value in values]), names)


def _dealt(samples: Samples, word: str, shares: tuple[float, float]) -> Samples:
    """The pictures of those identities that fall to this split."""
    train, val = shares
    if not (0 < train <= 1 and val >= 0 and train + val <= 1):
        raise ValueError(f"shares must be two numbers of at least 0 with a sum of at most 1, got {shares}")
    identity = samples.column(IDENTITY)
    n = len(identity.names)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(SPLIT_SEED))
    ends = round(train * n), round((train + val) * n)
    chosen = dict(zip(SPLITS, (order[: ends[0]], order[ends[0] : ends[1]], order[ends[1] :]), strict=True))
    rows = torch.isin(identity.values, chosen[word]).nonzero().flatten()
    if not len(rows):
        raise ValueError(f"shares={shares} leave no identity of {n} for split {word!r} of {samples.name!r}")
    return replace(samples.subset(rows), name=f"{samples.name}/{word}")
