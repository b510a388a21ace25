"""Batches of views, captions and keys from a stream of shards, the same at every run of the same seed."""

from __future__ import annotations

import hashlib
import itertools
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.data.batches import (
    Batch,
    _leave_signals_to_the_parent,
    _seed,
    _usable,
)
from counterpoint.data.captions import Tokenize, drawn, with_tokens
from counterpoint.data.decode import read_picture
from counterpoint.data.pil_views import picture_transform
from counterpoint.data.streams import Fault, Raw, Stream, read_shard
from counterpoint.data.tensor_views import normalise
from counterpoint.data.views import ViewSpec
from counterpoint.data.workers import watched

LANES = 8  # parts of a stream that are read side by side by one process
SHARDS, LANE, SAMPLE = range(5, 8)  # what a seed is for, beside those of `batches` and `captions`

Rows = Callable[[Sequence[str], Sequence[str]], tuple[Tensor, Mapping[int, str]]]


class StreamSource:
    """Batches from a stream, epoch by epoch.

    The shards are dealt to lanes, a lane reads its own one after the other through a buffer that shuffles,
    and the lanes take turns at making a batch. Which samples a batch has, their captions and their random
    views are functions of seed, epoch, step and the number of processes; the number of workers changes
    nothing.
    Going through the shards in rounds, a lane that has come to the end of its own begins anew. One whose own
    shards have no sample at all, such as a single one that cannot be read, goes on with all shards.

    spec: how views are drawn. batch_size: samples per step, over all processes.
    share: (k, m) makes this the k-th of m processes, k from 0, which read different shards.
    tokenize: where given, batches have the tokens of their captions.
    rows: from keys and first captions to positions in a similarity store, which the ids of a batch then are,
        and what is wrong with some of them, by place. Without it the ids are numbers made of the keys: equal
        where two rows are one sample.
    workers: processes that read and decode: the largest divisor of the number of lanes that is not above it.

    skipped: keys of the samples that were left out, each once. broken: the shards that could not be read to
    their end, with the reason. Both of this process and since it began.

    Raises ValueError for fewer samples than one batch, fewer shards than processes, and arguments out of
    range.
    """

    def __init__(
        self,
        stream: Stream,
        spec: ViewSpec,
        batch_size: int,
        seed: int = 0,
        workers: int = 2,
        device: torch.device | str = "cpu",
        share: tuple[int, int] = (0, 1),
        tokenize: Tokenize | None = None,
        rows: Rows | None = None,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("workers", workers, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if spec.pair_by is not None:
            raise ValueError(f"views.pair_by={spec.pair_by!r} pairs samples of a list; a stream has none")
        self.steps_per_epoch = stream.samples // batch_size
        if not self.steps_per_epoch:
            raise ValueError(f"data.samples={stream.samples} is less than one batch of {batch_size}")
        self.size = _own(batch_size, *share)
        self.lanes = LANES if stream.resample else min(LANES, len(stream.urls) // share[1])
        if not self.lanes:
            raise ValueError(
                f"{share[1]} processes need a shard each, data {stream.name!r} has {len(stream.urls)}: "
                "use fewer, or data.resample=true"
            )
        self.stream, self.spec, self.seed, self.share = stream, spec, seed, share
        self.workers = max((n for n in range(1, workers + 1) if self.lanes % n == 0), default=0)
        self.device, self.tokenize, self.rows = _usable(device), tokenize, rows
        self._skipped: dict[str, None] = {}
        self.broken: dict[str, str] = {}
        self.keys = RecentKeys()

    @property
    def skipped(self) -> list[str]:
        """Keys of the samples left out so far, each once."""
        return list(self._skipped)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from step `start` on, bit for bit those that a whole epoch has from there.

        What comes before `start` is read again and passed over; nothing of it is decoded. What cannot be
        used there stops the run or is counted, as if it were met the first time.
        """
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        if not 0 <= start <= self.steps_per_epoch:
            raise ValueError(
                f"start must be in 0..{self.steps_per_epoch}, the steps of an epoch, got {start}"
            )
        return self._read(epoch, start)

    def _read(self, epoch: int, start: int) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        loader: Iterable[Any] = DataLoader(
            _Steps(self, epoch, start),
            batch_size=None,
            num_workers=self.workers,
            collate_fn=_as_it_is,
            pin_memory=False,
            worker_init_fn=_leave_signals_to_the_parent,
            generator=torch.Generator(),
            multiprocessing_context="fork" if self.workers and sys.platform == "linux" else None,
        )
        for packed in watched(loader):
            self._settle(packed.faults)
            ids, kept = self._ids(packed)
            if not len(kept):
                raise ValueError(
                    f"no sample of a batch of {self.size} of data {self.stream.name!r} can be used"
                    + (f"; the last: {packed.faults[-1].reason}" if packed.faults else "")
                )
            with torch.no_grad():
                views = [
                    normalise(view[kept].to(self.device, non_blocking=True), self.spec)
                    for view in packed.views
                ]
            batch = Batch(
                ids,
                views,
                captions=[packed.captions[i] for i in kept],
                keys=[packed.keys[i] for i in kept],
            )
            self.keys.note(batch)
            yield batch if self.tokenize is None else with_tokens(batch, self.tokenize, self.device)

    def _settle(self, faults: Sequence[Fault]) -> None:
        """Stop at the first fault, or note them all; a shard is told of once."""
        for fault in faults:
            if self.stream.on_error == "stop":
                raise ValueError(f"{fault.reason} (on_error='skip' leaves out what cannot be used)")
            if fault.key is not None:
                self._skipped[fault.key] = None
            elif fault.shard not in self.broken:
                self.broken[fault.shard] = fault.reason
                warnings.warn(fault.reason, stacklevel=2)

    def _ids(self, packed: _Packed) -> tuple[Tensor, list[int]]:
        """The ids of samples that have one, and their places in the batch; the others join the faults."""
        keys = packed.keys
        if self.rows is None:
            return torch.tensor([_number(key) for key in keys], dtype=torch.int64), list(range(len(keys)))
        ids, wrong = self.rows(keys, packed.texts)
        bad = [Fault(keys[place], reason) for place, reason in sorted(wrong.items())]
        self._settle(bad)
        packed.faults.extend(bad)
        kept = [place for place in range(len(keys)) if place not in wrong]
        return ids[kept], kept


class RecentKeys:
    """The keys of the samples of the last batches, by id.

    >>> keys = RecentKeys()
    >>> keys.note(Batch(torch.tensor([7]), [], keys=["a"]))
    >>> keys[7]
    'a'
    """

    def __init__(self, batches: int = 4) -> None:
        self._tables: deque[dict[int, str]] = deque(maxlen=batches)

    def note(self, batch: Batch) -> None:
        """Remember the keys of a batch, and forget those of an older one."""
        self._tables.append(dict(zip(batch.ids.tolist(), batch.keys or (), strict=True)))

    def __getitem__(self, i: int, /) -> str:
        return next((table[i] for table in reversed(self._tables) if i in table), f"id {i}")


@dataclass(frozen=True)
class _Packed:
    """A batch on its way from a worker.

    texts: the first caption of each sample. captions: the drawn ones.
    views: uint8 `(count, n, 3, size, size)`.
    """

    keys: list[str]
    texts: list[str]
    captions: list[str]
    views: Tensor
    faults: list[Fault]


class _Steps(torch.utils.data.IterableDataset[Any]):
    """The batches of one epoch that fall to a worker; runs there."""

    def __init__(self, source: StreamSource, epoch: int, start: int) -> None:
        self.stream, self.spec, self.seed, self.share = source.stream, source.spec, source.seed, source.share
        self.lanes, self.size, self.steps = source.lanes, source.size, source.steps_per_epoch
        self.epoch, self.start = epoch, start
        self.transform = picture_transform(source.spec, normalise=False)

    def __iter__(self) -> Iterator[_Packed]:
        info = torch.utils.data.get_worker_info()
        first, every = (0, 1) if info is None else (info.id, info.num_workers)
        lanes: dict[int, Iterator[Raw | Fault]] = {}
        # The loader asks its workers in turn, and their number divides that of the lanes: so a lane is always
        # served by one worker, and whichever that is, it takes the same samples.
        for step in range(self.start + first, self.steps, every):
            lane = step % self.lanes
            faults: list[Fault] = []
            if lane not in lanes:
                lanes[lane] = self._lane(lane)
                faults = _pass(lanes[lane], self.size * len(range(lane, self.start, self.lanes)))
            raws, more = _take(lanes[lane], self.size)
            yield self._packed(step, raws, faults + more)

    def _lane(self, lane: int) -> Iterator[Raw | Fault]:
        """The samples of one lane, shuffled, without end."""
        place, processes = self.share
        reader = place * self.lanes + lane
        random = np.random.default_rng([LANE, self.seed, self.epoch, reader])
        size = self.stream.shuffle // self.lanes
        if self.stream.resample:
            draws = (int(random.integers(len(self.stream.urls))) for _ in itertools.count())
            return _shuffled(self._shards(draws, len(self.stream.urls)), size, random)
        order = np.random.default_rng([SHARDS, self.seed, self.epoch]).permutation(len(self.stream.urls))
        return self._rounds(order, order[reader :: processes * self.lanes], size, random)

    def _rounds(
        self, order: NDArray[np.int64], own: NDArray[np.int64], size: int, random: np.random.Generator
    ) -> Iterator[Raw | Fault]:
        """The samples of a lane's own shards, round after round; of all shards where its own have none."""
        while True:
            try:
                # The buffer is emptied before the next round begins, so that each has every sample once.
                yield from _shuffled(self._shards(random.permutation(own).tolist(), len(own)), size, random)
            except _Dry:
                if len(own) == len(order):
                    raise
                own = order

    def _shards(self, places: Iterable[int], patience: int) -> Iterator[Raw | Fault]:
        """The samples of these shards; a fault of its own where so many after each other have none."""
        empty = 0
        for place in places:
            url, name = self.stream.urls[place], self.stream.names[place]
            found, last = False, "it is empty"
            for item in read_shard(url, name, self.stream.tries, self.stream.timeout):
                found = found or isinstance(item, Raw)
                last = item.reason if isinstance(item, Fault) else last
                yield item
            empty = 0 if found else empty + 1
            if empty >= patience:
                raise _Dry(f"none of {patience} shards of data {self.stream.name!r} has a sample: {last}")

    def _packed(self, step: int, raws: list[Raw], faults: list[Fault]) -> _Packed:
        keys, texts, captions, views = [], [], [], []
        for place, raw in enumerate(raws):
            words = (SAMPLE, self.seed, self.epoch, self.share[0], step, place)
            try:
                picture = read_picture(raw.picture, raw.key)
            except ValueError as error:
                faults.append(Fault(raw.key, str(error)))
                continue
            # torchvision's transforms know only the global generator.
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(_seed(*words))
                captions.append(drawn(raw.captions, float(torch.rand(()))))
                views.append(torch.stack([self.transform(picture) for _ in range(self.spec.count)]))
            keys.append(raw.key)
            texts.append(raw.captions[0])
        empty = torch.empty(self.spec.count, 0, 3, self.spec.size, self.spec.size, dtype=torch.uint8)
        return _Packed(keys, texts, captions, torch.stack(views, dim=1) if views else empty, faults)


class _Dry(Exception):
    """There is nothing left to read."""


def _take(lane: Iterator[Raw | Fault], count: int) -> tuple[list[Raw], list[Fault]]:
    """The next so many samples of a lane, and what was met between them that cannot be used."""
    raws: list[Raw] = []
    faults: list[Fault] = []
    try:
        while len(raws) < count:
            item = next(lane)
            if isinstance(item, Raw):
                raws.append(item)
            else:
                faults.append(item)
    except _Dry as dry:
        # Told by the parent: out of a worker an exception comes as a traceback.
        faults.append(Fault(None, str(dry)))
        raws.clear()
    except StopIteration:  # a lane that was dry before
        raws.clear()
    return raws, faults


def _pass(lane: Iterator[Raw | Fault], count: int) -> list[Fault]:
    """Go so many samples on in a lane, keeping none; what was met on the way that cannot be used."""
    faults: list[Fault] = []
    for _ in range(count):
        taken, met = _take(lane, 1)
        faults += met
        if not taken:
            break
    return faults


def _shuffled(items: Iterable[Raw | Fault], size: int, random: np.random.Generator) -> Iterator[Raw | Fault]:
    """The items with each sample held back in a buffer of that size for a random while."""
    held: list[Raw] = []
    for item in items:
        if isinstance(item, Fault):
            yield item
        elif len(held) < size:
            held.append(item)
        elif size:
            place = int(random.integers(size))
            yield held[place]
            held[place] = item
        else:
            yield item
    for place in random.permutation(len(held)).tolist():
        yield held[place]


def _own(batch_size: int, place: int, parts: int) -> int:
    """How many samples of a batch are those of one process."""
    if not 0 <= place < parts:
        raise ValueError(f"share must be (k, m) with k in 0..m-1, got {(place, parts)}")
    if batch_size < parts:
        raise ValueError(f"batch_size={batch_size} is too small to share among {parts} processes")
    return (place + 1) * batch_size // parts - place * batch_size // parts


def _as_it_is(packed: Any) -> Any:
    return packed


def _number(key: str) -> int:
    """A number of 63 bits for a key, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
