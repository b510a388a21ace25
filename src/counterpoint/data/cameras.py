"""The same identities seen by several cameras, or drawn by several hands: told by the names of the files."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from numbers import Real
from pathlib import Path

import torch
from PIL import Image

from counterpoint.data.decode import PICTURES, read_picture
from counterpoint.data.faults import OnError, check_on_error, checked_path, existing_file, settle
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
    split: a folder of that name (train and test of market1501 are its bounding_box_train and _test), all
        pictures if not given. Where none of train, val and test has a folder, identities are dealt out to
        them, each by its name: it stays where it is whatever else there is.
    shares: of the identities that go to train and to val, about; test gets the others.
    on_error: what a picture does whose name does not fit: 'stop', or 'skip' to leave it out with a warning
        that gives the number.

    Label columns: identity (the default), camera, and those of other named groups (omniglot: alphabet).
    Distractors of market1501 have no identity (-1).

    Raises ValueError for an unknown layout, a pattern without the two groups, a split that has no folder
    where others have one, a zip file that cannot be read, and where no picture is left.

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
    _check_shares(shares)
    samples, word = _pictures(checked_path(path), split, known)
    matches = [_match(re.compile(known.pattern), key) for key in samples.keys]
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

    samples: for each camera, by its name, what it took.

    Other label columns stay where all have them with the same names; so do captions and picture tensors where
    all have them.

    Raises ValueError where there are none, or two have a key in common.

    >>> from counterpoint.data.shapes import shapes
    >>> both = side_by_side({str(c): shapes("test", count=2, size=16, camera=c) for c in (0, 1)})
    >>> both.column("identity").values.tolist(), both.column("camera").values.tolist()
    ([0, 1, 0, 1], [0, 0, 1, 1])
    """
    if not isinstance(samples, Mapping) or not all(isinstance(camera, str) for camera in samples):
        raise ValueError(f"side_by_side needs samples by the name of their camera, got {_kind(samples)}")
    parts = list(samples.values())
    if not parts:
        raise ValueError("side_by_side needs the samples of at least one camera, got none")
    keys = [key for part in parts for key in part.keys]
    if len(set(keys)) < len(keys):
        raise ValueError(f"two cameras of {', '.join(samples)} have a sample with the same key")
    places = [(part, i) for part in parts for i in range(len(part))]
    labels = {
        name: replace(first, values=torch.cat([part.labels[name].values for part in parts]))
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


def _kind(samples: object) -> str:
    if not isinstance(samples, Mapping):
        return type(samples).__name__
    return f"the name {next(camera for camera in samples if not isinstance(camera, str))!r}"


def _match(pattern: re.Pattern[str], key: str) -> re.Match[str] | None:
    """How the pattern fits the end of a path, the shortest end first."""
    starts = [*(slash.end() for slash in re.finditer("/", key)), 0]
    found = (pattern.fullmatch(key, start) for start in sorted(starts, reverse=True))
    return next((match for match in found if match is not None), None)


def _layout(layout: str | None, pattern: str | None) -> Layout:
    if (layout is None) == (pattern is None):
        raise ValueError(
            f"give a layout, one of {', '.join(LAYOUTS)}, or a pattern, not "
            f"{'both' if layout is not None else 'neither'}"
        )
    if layout is not None:
        if not isinstance(layout, str):
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
        if layout not in LAYOUTS:
            raise ValueError(f"unknown layout {layout!r}: {hint(layout, LAYOUTS)}")
        return LAYOUTS[layout]
    try:
        groups = re.compile(pattern).groupindex if isinstance(pattern, str) else {}
    except (re.error, OverflowError) as error:
        raise ValueError(f"pattern {pattern!r} is not a regular expression: {error}") from None
    for name in (IDENTITY, CAMERA):
        if not isinstance(pattern, str) or name not in groups:
            raise ValueError(f"pattern {pattern!r} has no group (?P<{name}>...)")
    return Layout(str(pattern))


def _pictures(path: Path, split: str | None, layout: Layout) -> tuple[Samples, str | None]:
    """The pictures of a split, and the word of it where it still has to be dealt out."""
    if path.suffix.lower() == ".zip":
        names = _names_in_zip(existing_file(path))
        start, word = _part(path, names, split, layout)
        names = [name for name in names if name.startswith(start)]
        samples = Samples(path.stem, names, partial(_stored, _read_zip(path, names), names))
    else:
        samples = folder(path, labelled=False)
        start, word = _part(path, samples.keys, split, layout)
        if start:
            samples = samples.subset([i for i, key in enumerate(samples.keys) if key.startswith(start)])
    return (replace(samples, name=f"{samples.name}/{start[:-1]}") if start else samples), word


def _part(path: Path, names: Sequence[str], split: str | None, layout: Layout) -> tuple[str, str | None]:
    """What the names of a split begin with; or "", and the word of it where it is to be dealt out."""
    if split is None:
        return "", None
    if not isinstance(split, str) or not split:
        raise ValueError(f"split must be the name of a folder or one of {', '.join(SPLITS)}, got {split!r}")
    folders = {word: (layout.folders or {}).get(word, word) for word in (*SPLITS, split)}
    starts = {word: _start(names, place) for word, place in folders.items()}
    if starts[split]:
        return starts[split], None
    there = [folders[word] for word, start in starts.items() if start]
    if there or layout.folders:
        # Dealt out of all pictures it would hold identities that are in the other folders.
        has = f"; it has {', '.join(there)}, and where splits are folders none is dealt out" if there else ""
        raise ValueError(f"{path} has no folder {folders[split]!r} for split {split!r}{has}")
    if split not in SPLITS:
        raise ValueError(
            f"{path} has no folder {split!r}, and identities are dealt out to {', '.join(SPLITS)}"
        )
    return "", split


def _start(names: Sequence[str], place: str) -> str:
    """What the names in that folder begin with, or "" where it is not there.

    It stands at the top, or in the folder that holds all pictures, as archives have one.
    """
    ends = min(names).split("/")[:-1], max(names).split("/")[:-1]
    shared = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))]
    for depth in range(len(shared) + 1):
        start = "/".join([*shared[:depth], place, ""])
        if any(name.startswith(start) for name in names):
            return start
    return ""


def _names_in_zip(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            # A set: what is stored twice is read once, the later one.
            found = set(archive.namelist())
    except Exception as error:
        raise _unreadable(path, error) from None
    names = sorted(
        name
        for name in found
        if Path(name).suffix.lower() in PICTURES and not Path(name).name.startswith(".")
    )
    if not names:
        raise ValueError(f"{path} has no pictures: no file ends in {', '.join(sorted(PICTURES))}")
    return names


def _read_zip(path: Path, names: Sequence[str]) -> list[bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [archive.read(name) for name in names]
    except MemoryError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> ValueError:
    # zipfile lets out what its decompressors and struct raise, each of another class.
    reason = " ".join(str(error).split()) or type(error).__name__
    return ValueError(f"{path} is not a whole zip file that can be read: {reason}")


def _stored(stored: Sequence[bytes], names: Sequence[str], i: int) -> Image.Image:
    return read_picture(stored[i], names[i])


def _numbered(values: Sequence[str | None], nobody: frozenset[str]) -> Labels:
    names = sorted({value for value in values if value is not None} - nobody)
    number = {name: k for k, name in enumerate(names)}
    return Labels(torch.tensor([number.get(value or "", UNLABELLED) for value in values]), names)


def _check_shares(shares: tuple[float, float]) -> None:
    numbers = list(shares) if isinstance(shares, Sequence) and not isinstance(shares, str | bytes) else []
    real = all(isinstance(share, Real) and not isinstance(share, bool) for share in numbers)
    if not (len(numbers) == 2 and real and 0 < numbers[0] <= 1 and numbers[1] >= 0 and sum(numbers) <= 1):
        raise ValueError(
            "shares must be two numbers, of train above 0 and of val at least 0, with a sum of at most 1, "
            f"got {shares!r}"
        )


def _dealt(samples: Samples, word: str, shares: tuple[float, float]) -> Samples:
    """The pictures of those identities that fall to this split."""
    identity = samples.column(IDENTITY)
    chosen = [k for k, name in enumerate(identity.names) if _split_of(name, shares) == word]
    rows = torch.isin(identity.values, torch.tensor(chosen, dtype=torch.int64)).nonzero().flatten()
    if not len(rows):
        raise ValueError(
            f"shares={shares} leave no identity of {len(identity.names)} for split {word!r} of "
            f"{samples.name!r}: each is dealt out by its name, and of few none may fall to a small share"
        )
    return replace(samples.subset(rows), name=f"{samples.name}/{word}")


def _split_of(identity: str, shares: tuple[float, float]) -> str:
    """The split of an identity: a function of its name, so that others that come or go do not move it."""
    digest = hashlib.blake2b(f"{SPLIT_SEED}/{identity}".encode(), digest_size=6).digest()
    place = int.from_bytes(digest, "big") / 2**48
    return SPLITS[0] if place < shares[0] else SPLITS[1] if place < sum(shares) else SPLITS[2]
