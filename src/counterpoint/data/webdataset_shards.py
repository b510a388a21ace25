"""Pictures with captions in tar shards, as img2dataset writes them for WebDataset."""

from __future__ import annotations

import json
import re
import tarfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from counterpoint.data.decode import PICTURES, read_picture
from counterpoint.data.faults import OnError, check_on_error, is_unicode, settle
from counterpoint.data.samples import Samples
from counterpoint.extras import need
from counterpoint.names import hint

# The webdataset library reads shards as streams only (its random-access part, wids, has left the package),
# while kNN, galleries and resuming ask for sample i. So each shard is walked once with tarfile, which gives
# the captions and the place of each picture, and pictures are read from there. Streaming over shards needs no
# index, and is not done here.

BLOCK = 512  # bytes; tar files are made of blocks, and end with zero ones


def shards(path: str | Path, split: str | None = None, on_error: OnError = "stop") -> Samples:
    """Samples from tar shards with `KEY.jpg` (or png, webp, ...), `KEY.txt` and `KEY.json`.

    path: one `.tar`, a folder of them, a glob pattern (`data/cc3m-*.tar`) or one with braces
        (`data/{00000..00331}.tar`, which needs the extra `captions`). Tars must not be compressed.
    split: only shards with that word in their name, as `train-00000.tar`; or the folder of that name.
    on_error: what a sample without picture or caption, or a shard that ends early, does: 'stop', or 'skip' to
        leave the sample out, with a warning that gives the number.

    The caption is the text of `KEY.txt`, or else `caption` in `KEY.json`. Where that has a list `captions`
    too, `Samples.all_captions` has the caption and those of the list that differ from it. Keys are
    `SHARD/KEY`. All shards are walked once at the start, about 0.1 s for 1,000 samples; pictures are read and
    decoded when asked for.

    >>> import io, tempfile
    >>> picture = io.BytesIO()
    >>> Image.new("RGB", (2, 2), "red").save(picture, "png")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tarfile.open(f"{folder}/00000.tar", "w") as tar:
    ...         for name, data in {"7.png": picture.getvalue(), "7.txt": b"a red square"}.items():
    ...             member = tarfile.TarInfo(name)
    ...             member.size = len(data)
    ...             tar.addfile(member, io.BytesIO(data))
    ...     samples = shards(folder)
    ...     samples.keys, samples.captions, samples.picture(0).getpixel((0, 0))
    (['00000/7'], ['a red square'], (255, 0, 0))
    """
    check_on_error(on_error)
    files = _shard_files(path, split)
    found: list[_Sample] = []
    faults: list[str] = []
    for number, file in enumerate(files):
        _walk(number, file, found, faults, on_error)
    settle(faults, len(found) + len(faults), str(path), on_error)
    if not found:
        raise ValueError(f"{path} has no samples")
    stems = _short_names(files)
    keys = [f"{stems[sample.shard]}/{sample.key}" for sample in found]
    places = np.array([[sample.shard, sample.offset, sample.size] for sample in found], dtype=np.int64)
    several = [sample.captions for sample in found]
    return Samples(
        name=Path(path).stem if split is None else f"{Path(path).stem}/{split}",
        keys=keys,
        picture=partial(_picture, files, places, keys),
        captions=[sample.captions[0] for sample in found],
        all_captions=several if any(len(texts) > 1 for texts in several) else None,
    )


@dataclass(frozen=True)
class _Sample:
    """A sample, and the place of its encoded picture."""

    shard: int
    key: str
    offset: int
    size: int
    captions: list[str]


def _picture(files: Sequence[Path], places: NDArray[np.int64], keys: Sequence[str], i: int) -> Image.Image:
    shard, offset, size = (int(value) for value in places[i])
    # Opened anew for each picture: threads and forked workers would share the position of an open file.
    try:
        with files[shard].open("rb") as stream:
            stream.seek(offset)
            data = stream.read(size)
    except OSError as error:
        raise ValueError(f"picture {keys[i]!r} cannot be read: {error}") from error
    return read_picture(data, keys[i])


def _shard_files(path: str | Path, split: str | None) -> list[Path]:
    source = Path(path).expanduser()
    text = str(source)
    if source.is_dir():
        folder = source / split if split is not None and (source / split).is_dir() else source
        files, split = sorted(folder.glob("*.tar")), (split if folder == source else None)
    elif source.is_file():
        files = [source]
    elif "{" in text:
        files = [Path(name) for name in need("braceexpand", extra="captions").braceexpand(text)]
        if missing := [file for file in files if not file.is_file()]:
            raise ValueError(f"shard {missing[0]} is not there ({len(missing)} of {len(files)} missing)")
    else:
        files = sorted(Path(source.anchor or ".").glob(str(source.relative_to(source.anchor))))
    if not files:
        raise ValueError(f"{path} has no .tar files" if source.exists() else f"no file matches {path}")
    if split is None:
        return files
    chosen = [file for file in files if split in re.split(r"[-_.]", file.stem)]
    if not chosen:
        words = sorted(
            {word for file in files for word in re.split(r"[-_.]", file.stem) if not word.isdigit()}
        )
        raise ValueError(f"no shard of {path} has split {split!r} in its name: {hint(split, words)}")
    return chosen


def _short_names(files: Sequence[Path]) -> list[str]:
    """The stem of each shard, or its path where two have the same."""
    stems = [file.stem for file in files]
    return stems if len(set(stems)) == len(stems) else [file.with_suffix("").as_posix() for file in files]


def _walk(number: int, file: Path, found: list[_Sample], faults: list[str], on_error: OnError) -> None:
    """Add the samples of one shard to `found`, and what is wrong with the others to `faults`."""
    samples, early = _members(file)
    if early is not None:
        if on_error == "stop":
            raise ValueError(f"{early} (on_error='skip' uses the samples before that place)")
        warnings.warn(f"{early}; the samples before that place are used", stacklevel=4)
    with file.open("rb") as stream:
        for key, members in samples.items():
            picture = next((members[ending] for ending in members if f".{ending}" in PICTURES), None)
            texts: dict[str, bytes] = {
                ending: _read(stream, *members[ending]) for ending in ("txt", "json") if ending in members
            }
            captions, fault = captions_of(texts)
            if picture is None:
                fault = "has no picture"
            if fault is not None or picture is None:
                faults.append(f"sample {key!r} of shard {file} {fault}")
            else:
                found.append(_Sample(number, key, *picture, captions))


def _members(file: Path) -> tuple[dict[str, dict[str, tuple[int, int]]], str | None]:
    """By sample key and ending, where each whole member begins and its size; and how the shard ends early."""
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    size = file.stat().st_size
    early = None
    try:
        with tarfile.open(file, "r:") as tar:
            end = 0
            try:
                for member in tar:
                    # A dot file has no key. tarfile gives a member that is cut off before it notices.
                    name = re.fullmatch(r"((?:.*/)?[^./]+)\.([^/]+)", member.name)
                    if name and member.isfile() and member.offset_data + member.size <= size:
                        place = samples.setdefault(name[1], {})
                        if name[2].lower() in place:
                            raise ValueError(f"shard {file} has two members {member.name!r}")
                        place[name[2].lower()] = (member.offset_data, member.size)
                end = tar.offset
            except tarfile.TarError as error:
                early = f"shard {file} ends early: {error}"
    except (tarfile.TarError, OSError) as error:
        raise ValueError(f"shard {file} cannot be read as an uncompressed tar file: {error}") from error
    if early is None and not _has_end_mark(file, end):
        early = f"shard {file} ends early or is damaged: there is no end-of-archive mark at byte {end}"
    return samples, early


def _has_end_mark(file: Path, end: int) -> bool:
    """Whether a block of zeros follows the last member: tarfile accepts a shard that stops without one."""
    with file.open("rb") as stream:
        stream.seek(end)
        return stream.read(BLOCK) == bytes(BLOCK)


def _read(stream: BinaryIO, offset: int, size: int) -> bytes:
    stream.seek(offset)
    return stream.read(size)


def captions_of(members: Mapping[str, bytes]) -> tuple[list[str], str | None]:
    """The captions in the members "txt" and "json" of a sample, the first one foremost; and what is wrong.

    >>> captions_of({"txt": b"a dog", "json": b'{"captions": ["a dog", "a puppy"]}'})
    (['a dog', 'a puppy'], None)
    >>> captions_of({"txt": b" "})
    ([], 'has an empty caption (.txt)')
    """
    ending = "txt" if "txt" in members else "json"
    first: object = None
    if ending not in members:
        return [], "has no caption (.txt, or .json with 'caption')"
    told: object = None
    fault: Exception | None = None
    if "json" in members:
        try:
            told = json.loads(members["json"].decode("utf-8-sig"))
        except ValueError as error:
            fault = error
    try:
        if ending == "txt":
            first = members["txt"].decode("utf-8-sig")
        elif fault is not None or not isinstance(told, dict):
            raise fault or ValueError("it holds no object")
        else:
            first = told.get("caption")
    except ValueError as error:
        return [], f"has a .{ending} that cannot be read: {error}"
    if not isinstance(first, str) or not first.strip():
        return [], f"has an empty caption (.{ending})"
    if not is_unicode(first):
        return [], f"has a caption that is not Unicode (.{ending})"
    # What else the .json says may be damaged or of another kind: the .txt is enough.
    listed = told.get("captions") if isinstance(told, dict) else None
    texts = listed if isinstance(listed, list) else []
    others = [text.strip() for text in texts if isinstance(text, str) and is_unicode(text)]
    return list(dict.fromkeys([first.strip(), *filter(None, others)])), None
