"""Tar shards that are read from front to back, from a disk, a command or a web server: no index is made.

Why not webdataset's own pipeline: its shuffling cannot be taken up again at a step, its HTTP reader waits for
ever on a server that has stopped sending, and a shard that was cut short passes for a whole one. Commands
(`pipe:`) and the stores it knows are opened by it; members are read by tarfile.
"""

from __future__ import annotations

import http.client
import io
import re
import tarfile
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from counterpoint.data.decode import PICTURES
from counterpoint.data.faults import OnError, check_on_error, settle
from counterpoint.data.webdataset_shards import BLOCK, _shard_files, captions_of
from counterpoint.extras import need
from counterpoint.names import hint

WAIT = 1.0  # seconds before the second try; each further wait is twice as long
LONGEST_WAIT = 30.0
LONGEST_TIMEOUT = 1e6  # sockets take no infinite one
KEPT = 4 * tarfile.RECORDSIZE  # bytes of the end of a stream that are kept to look for its end mark
MEMBER = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")
REFUSALS = frozenset(range(400, 500)) - {408, 425, 429}  # answers that a second try does not change
BROKEN = (OSError, tarfile.TarError, http.client.HTTPException, EOFError)


@dataclass(frozen=True)
class Stream:
    """Shards to be read in random order, without end; see `streamed_shards` for its fields."""

    name: str
    urls: tuple[str, ...]
    samples: int
    shuffle: int = 5000
    resample: bool = False
    tries: int = 4
    timeout: float = 30.0
    on_error: OnError = "stop"
    names: tuple[str, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        check_on_error(self.on_error)
        for name, least in (("samples", 1), ("shuffle", 0), ("tries", 1)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"data.{name} must be at least {least}, got {value}")
        if not 0 < self.timeout <= LONGEST_TIMEOUT:
            raise ValueError(
                f"data.timeout must be above 0 seconds, {LONGEST_TIMEOUT:g} at most, got {self.timeout}"
            )
        stems = [PurePosixPath(url.split("?")[0].rstrip("' -")).stem for url in self.urls]
        whole = len(set(stems)) < len(stems)
        names = [url.removesuffix(".tar") for url in self.urls] if whole else stems
        object.__setattr__(self, "names", tuple(names))


def streamed_shards(
    path: str,
    samples: int,
    shuffle: int = 5000,
    resample: bool = False,
    held_out: str | None = None,
    tries: int = 4,
    timeout: float = 30.0,
    split: str | None = None,
    on_error: OnError = "stop",
) -> Stream:
    """Shards in the form of img2dataset, as a stream: for more pairs than one wants to index.

    path: as of `shards`; or URLs or commands, with braces: `https://host/cc3m/{00000..00331}.tar`,
        `pipe:aws s3 cp s3://bucket/{00000..00331}.tar -`. These need the extra `captions`.
    samples: how many make an epoch.
    shuffle: samples that are held back, per process, so that neighbours in a shard are not neighbours in a
        batch. They are held as encoded bytes.
    resample: draw shards with replacement instead of going through them in rounds.
    held_out: shards with an index, which are evaluated.
    tries: how often a shard that cannot be read is opened, with a wait between that doubles; of a file, once.
    timeout: seconds that a web server may send nothing. A command brings its own limit.
    split: only shards with that word in their name.
    on_error: 'skip' leaves out samples without a picture or caption, pictures that cannot be decoded, and the
        rest of a shard that ends early or cannot be read, and counts them; 'stop' stops at the first.

    >>> stream = streamed_shards("https://host/cc-{0..2}.tar", samples=1000)
    >>> len(stream.urls), stream.names
    (3, ('cc-0', 'cc-1', 'cc-2'))
    """
    del held_out  # what is evaluated is no part of the stream
    if not _is_remote(path):
        urls = [str(file) for file in _shard_files(path, split)]
        name = Path(path).stem
    else:
        _check_scheme(path)
        urls = list(need("braceexpand", extra="captions").braceexpand(path)) if "{" in path else [path]
        name = PurePosixPath(path).stem
        if split is not None:
            kept = [url for url in urls if split in re.split(r"[-_./?=\s]", url)]
            if not kept:
                words = sorted(
                    {word for url in urls for word in re.split(r"[-_./?=\s]", url) if word.isalpha()}
                    - {"tar"}
                )
                raise ValueError(f"no shard of {path} has split {split!r} in its name: {hint(split, words)}")
            urls = kept
    return Stream(name, tuple(urls), samples, shuffle, resample, tries, timeout, on_error)


@dataclass(frozen=True)
class Raw:
    """A sample as it is in its shard: the encoded picture, and its captions, the first one foremost."""

    key: str
    picture: bytes
    captions: list[str]


@dataclass(frozen=True)
class Fault:
    """What cannot be used. key: of a sample; None where it is the rest of a shard, or all of it."""

    key: str | None
    reason: str
    shard: str = ""


def read_shard(url: str, name: str, tries: int = 4, timeout: float = 30.0) -> Iterator[Raw | Fault]:
    """The samples of one shard in their order, and a fault for each that lacks something.

    What can be tried again is: a shard whose connection is lost is opened anew, and the samples given already
    are passed over. After the last try a fault says the name, the tries and the reason; samples from before
    that place have been given.

    name: what keys begin with.
    """
    tries = tries if _is_remote(url) else 1
    given = 0
    for number in range(1, tries + 1):
        seen = 0  # in this try
        try:
            for sample in _samples(url, name, timeout):
                seen += 1
                if seen > given:
                    given += 1
                    yield sample
            return
        except _EarlyError as early:
            last = number == tries or not early.again
            if last:
                if early.pending is not None and seen == given:
                    given += 1
                    yield early.pending
                yield Fault(None, _early(url, number, given, early.reason), url)
                return
        time.sleep(min(WAIT * 2 ** (number - 1), LONGEST_WAIT))


def stream_texts(
    stream: Stream, progress: Callable[[int, int], None] | None = None
) -> tuple[list[str], list[str]]:
    """The keys of all samples of a stream and the first caption of each, in the order of the shards.

    All of it is read once, pictures too, which are not decoded.

    progress: called with the number of shards that are done, and of all.

    Raises ValueError where there is no sample, and with `on_error: stop` at the first that cannot be used;
    with `skip` their number is a warning, and so is each shard that cannot be read to its end.
    """
    keys: list[str] = []
    texts: list[str] = []
    faults: list[str] = []
    for number, (url, name) in enumerate(zip(stream.urls, stream.names, strict=True), start=1):
        for item in read_shard(url, name, stream.tries, stream.timeout):
            if isinstance(item, Raw):
                keys.append(item.key)
                texts.append(item.captions[0])
            elif stream.on_error == "stop":
                raise ValueError(f"{item.reason} (on_error='skip' leaves out what cannot be used)")
            elif item.key is None:
                warnings.warn(item.reason, stacklevel=2)
            else:
                faults.append(item.reason)
        if progress is not None:
            progress(number, len(stream.urls))
    settle(faults, len(keys) + len(faults), f"data {stream.name!r}", stream.on_error)
    if not keys:
        raise ValueError(f"data {stream.name!r} has no samples")
    return keys, texts


class _EarlyError(Exception):
    """A shard that cannot be read to its end. pending: a sample whose members may be whole."""

    def __init__(self, reason: str, pending: Raw | None, again: bool) -> None:
        super().__init__(reason)
        self.reason, self.pending, self.again = reason, pending, again


def _early(url: str, tries: int, given: int, reason: str) -> str:
    times = f" after {tries} tries" if tries > 1 else ""
    if not given:
        return f"shard {url} cannot be read{times}: {reason}"
    return f"shard {url} ends early{times}, the {given} samples before that place are used: {reason}"


def _samples(url: str, name: str, timeout: float) -> Iterator[Raw | Fault]:
    """Samples, which are the members of one key that follow each other."""
    key: str | None = None
    members: dict[str, bytes] = {}
    try:
        with _open(url, timeout) as stream:
            for found, ending, data in _members(stream):
                if key is not None and found != key:
                    yield _sample(f"{name}/{key}", members)
                    members = {}
                key = found
                members[ending] = data
    except BROKEN as error:
        sample = None if key is None else _sample(f"{name}/{key}", members)
        again = not (isinstance(error, urllib.error.HTTPError) and error.code in REFUSALS)
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _EarlyError(reason, sample if isinstance(sample, Raw) else None, again) from None
    if key is not None:
        yield _sample(f"{name}/{key}", members)


def _sample(key: str, members: dict[str, bytes]) -> Raw | Fault:
    picture = next((data for ending, data in members.items() if f".{ending}" in PICTURES), None)
    captions, fault = captions_of(members)
    if picture is None:
        fault = "has no picture"
    if fault is not None or picture is None:
        return Fault(key, f"sample {key!r} {fault}")
    return Raw(key, picture, captions)


def _members(stream: IO[bytes]) -> Iterator[tuple[str, str, bytes]]:
    """Key, ending and content of each member that may be a picture or a text."""
    watched = _Watched(stream)
    with tarfile.open(fileobj=watched, mode="r|") as tar:
        for member in tar:
            found = MEMBER.fullmatch(member.name)
            if not found or not member.isfile():
                continue
            ending = found[2].lower()
            if f".{ending}" in PICTURES or ending in ("txt", "json"):
                content = tar.extractfile(member)
                data = content.read() if content is not None else b""
                if len(data) < member.size:
                    raise tarfile.ReadError("unexpected end of data")
                yield found[1], ending, data
        # tarfile takes the end of a stream for the end of the shard.
        if not watched.has_end_mark(tar.offset):
            raise tarfile.ReadError(f"there is no end-of-archive mark at byte {tar.offset}")


class _Watched(io.RawIOBase):
    """A stream that remembers its last bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.count, self.tail = stream, 0, b""

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(size)
        self.count += len(data)
        self.tail = (self.tail + data)[-KEPT:]
        return data

    def has_end_mark(self, offset: int) -> bool:
        """Whether a block of zeros stands at that byte."""
        start = offset - (self.count - len(self.tail))
        return start >= 0 and self.tail[start : start + BLOCK] == bytes(BLOCK)


def _is_remote(url: str) -> bool:
    return url.startswith("pipe:") or "://" in url


def _check_scheme(path: str) -> None:
    """ValueError for a kind of address that nothing here opens."""
    scheme = "pipe" if path.startswith("pipe:") else path.partition("://")[0]
    if scheme in ("http", "https"):
        return
    known = [one for one in need("webdataset.gopen", extra="captions").gopen_schemes if one != "__default__"]
    if scheme not in known:
        raise ValueError(
            f"data.path={path!r}: {scheme}:// cannot be opened, only {', '.join(sorted({'https', *known}))}; "
            "use a command, such as pipe:aws s3 cp s3://bucket/{00..99}.tar -"
        )


def _open(url: str, timeout: float) -> Any:
    if url.startswith(("http://", "https://")):
        return urllib.request.urlopen(url, timeout=timeout)
    if _is_remote(url):
        return need("webdataset", extra="captions").gopen(url)
    return Path(url).open("rb")
