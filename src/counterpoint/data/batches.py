"""Batches of views for training, and plain ones for evaluation, the same at every run of the same seed.

Small pictures that are in memory are augmented a batch at a time, on the device; others are decoded and
augmented one by one in worker processes.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterpoint.data.faults import OnError, check_on_error
from counterpoint.data.pairs import Pairs
from counterpoint.data.pil_views import picture_transform
from counterpoint.data.samples import Samples
from counterpoint.data.tensor_views import make_views, normalise
from counterpoint.data.views import ViewSpec
from counterpoint.data.workers import watched

LARGEST_IN_MEMORY = 64  # side in pixels; above, a crop by matrix products costs more than one by table
RESIDENT_BYTES = 2**31  # pictures of up to so many bytes are kept on the GPU
ORDER, STEP, SAMPLE, PAIR = range(4)  # what a seed is for; keeps the streams apart


@dataclass(frozen=True)
class Batch:
    """Views of some samples.

    ids: `(n,)` int64 on the CPU, positions in the samples; of paired views, that of the first.
    views: tensors `(n, 3, size, size)` float32, normalised; row i of each shows sample `ids[i]`.
    captions: one text per sample, where texts are asked for. keys: those of the samples, of a stream.
    tokens: the captions as `(n, length)` int64, which are then the last view.
    """

    ids: Tensor
    views: list[Tensor]
    captions: Sequence[str] | None = None
    tokens: Tensor | None = None
    keys: Sequence[str] | None = None


@dataclass(frozen=True)
class _Bad:
    """A picture that could not be decoded, as told by the worker that tried."""

    index: int
    reason: str


class BatchSource:
    """Batches of views, epoch by epoch; made by `batch_source`.

    steps_per_epoch: batches in a whole epoch.
    pairs: the identities that a batch is drawn from, where the spec says `pair_by`; else None.
    skipped: keys of the pictures left out so far by this source, in the order they were met.
    """

    def __init__(
        self,
        samples: Samples,
        spec: ViewSpec,
        batch_size: int,
        seed: int = 0,
        workers: int = 2,
        drop_last: bool = True,
        on_error: OnError = "stop",
        device: torch.device | str = "cpu",
        share: tuple[int, int] = (0, 1),
    ) -> None:
        check_on_error(on_error)
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("workers", workers, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if len(samples) == 0:
            raise ValueError(f"data {samples.name!r} has no samples")
        self.pairs = None if spec.pair_by is None else Pairs(samples, spec.pair_by)
        n = len(samples) if self.pairs is None else len(self.pairs)
        if drop_last and n < batch_size:
            what = "samples" if self.pairs is None else "identities to pair"
            raise ValueError(
                f"data {samples.name!r} has {n} {what}, less than one batch of {batch_size}: "
                "use a smaller batch_size"
            )
        self.samples, self.spec, self.batch_size, self.seed = samples, spec, batch_size, seed
        self.workers, self.drop_last, self.on_error = workers, drop_last, on_error
        self.device = _usable(device)
        if share[1] > 1 and not drop_last:
            raise ValueError(
                f"share={share} needs drop_last=True: a short batch may have no part for a process"
            )
        self.part = _part(batch_size, *share)
        self.steps_per_epoch = n // batch_size if drop_last else -(-n // batch_size)
        self._skipped: dict[str, None] = {}
        self._pictures = _in_memory(samples, self.device)

    @property
    def skipped(self) -> list[str]:
        """Keys of the pictures left out so far, each once."""
        return list(self._skipped)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from step `start` on.

        They are those that a whole epoch gives from that step on, bit for bit, with any number of workers.
        Raises ValueError for an epoch or a start out of range; while iterating, for a bad picture.
        """
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        if not 0 <= start <= self.steps_per_epoch:
            raise ValueError(
                f"start must be in 0..{self.steps_per_epoch}, the steps of an epoch, got {start}"
            )
        n = len(self.samples) if self.pairs is None else len(self.pairs)
        order = torch.randperm(n, generator=_generator(ORDER, self.seed, epoch))
        if self.pairs is not None:
            drawn = self.pairs.draw(self.spec.count, _generator(PAIR, self.seed, epoch))
            order = drawn.index_select(1, order)
        lists = torch.split(order, self.batch_size, dim=-1)[: self.steps_per_epoch]
        return self._read(lists[start:], epoch, start)

    def _read(self, lists: Sequence[Tensor], epoch: int, start: int) -> Iterator[Batch]:
        """The batches of these positions: `(n,)`, or `(views, n)`, each view with a picture of its own."""
        if self._pictures is not None:
            return self._from_memory(self._pictures, lists, epoch, start)
        return self._from_files(lists, epoch)

    def _from_memory(
        self, pictures: Tensor, lists: Sequence[Tensor], epoch: int, start: int
    ) -> Iterator[Batch]:
        for step, ids in enumerate(lists, start):
            generator = _generator(STEP, self.seed, epoch, step)
            with torch.no_grad():
                if pictures.device == self.device:
                    views = make_views(pictures, self.spec, generator, ids, self.part)
                else:
                    own, places = ids[..., self.part], torch.zeros_like(ids)
                    places[..., self.part] = torch.arange(own.numel()).view_as(own)
                    chosen = pictures.index_select(0, own.flatten()).to(self.device, non_blocking=True)
                    views = make_views(chosen, self.spec, generator, places, self.part)
            yield Batch((ids if ids.ndim == 1 else ids[0])[self.part], views)

    def _from_files(self, lists: Sequence[Tensor], epoch: int) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        loader = DataLoader(
            _Views(self.samples, self.spec, self.seed, epoch),
            batch_sampler=[(ids.T if ids.ndim == 2 else ids)[self.part].tolist() for ids in lists],
            num_workers=self.workers,
            collate_fn=_collate,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_leave_signals_to_the_parent,
            # Without a generator of its own the loader draws from the global one.
            generator=torch.Generator(),
            # Forked workers share the samples, whatever `picture` closes over; elsewhere it must pickle.
            multiprocessing_context="fork" if self.workers and sys.platform == "linux" else None,
        )
        for ids, stacked, bad in watched(loader):
            self._settle(bad, len(ids))
            with torch.no_grad():
                views = [normalise(view.to(self.device, non_blocking=True), self.spec) for view in stacked]
            yield Batch(ids, views)

    def _settle(self, bad: list[_Bad], good: int) -> None:
        """Stop at the first bad picture, or note the keys of all and go on."""
        if not bad:
            return
        key = self.samples.keys[bad[0].index]
        reason = bad[0].reason
        if repr(key) not in reason:
            reason = f"picture {key!r} cannot be read: {reason}"
        if self.on_error == "stop":
            raise ValueError(f"{reason} (on_error='skip' leaves such pictures out)")
        if good == 0:
            raise ValueError(f"no picture of a batch of {len(bad)} can be read; the first: {reason}")
        self._skipped.update({self.samples.keys[fault.index]: None for fault in bad})


def batch_source(
    samples: Samples,
    spec: ViewSpec,
    batch_size: int,
    seed: int = 0,
    workers: int = 2,
    drop_last: bool = True,
    on_error: OnError = "stop",
    device: torch.device | str = "cpu",
    share: tuple[int, int] = (0, 1),
) -> BatchSource:
    """Shuffled batches of random views.

    The order is a function of seed and epoch. The random parameters are one of seed, epoch and step where the
    pictures are in memory (`samples.tensor`, sides of at most 64 pixels), and of seed, epoch and sample where
    worker processes decode them. torch's global generator is left as it was.

    With `spec.pair_by` an epoch has one row for each identity that at least two cameras saw, and the views of
    a row are pictures of it by different cameras, drawn anew every epoch. Identities of one camera are left
    out; their number is a warning and `source.pairs.left_out`.

    workers: processes that decode and augment; 0 does it in this one. Not used for pictures in memory.
    drop_last: leave out the last batch of an epoch where it is short.
    on_error: 'stop' raises at the first bad picture; 'skip' leaves it out of its batch, which gets shorter,
        and its key appears in `skipped`. Of paired views one bad picture leaves out the identity.
    device: where the views are put; pictures in memory are augmented there.
    share: (k, m) gives the k-th of m parts of every batch, k from 0: what one of m processes trains on. The
        parts, laid end to end, are the batch that (0, 1) gives; sizes differ by at most one.

    Raises ValueError for fewer samples than one batch (unless `drop_last=False`), for arguments out of range,
    and while iterating for a bad picture.

    >>> from PIL import Image
    >>> from counterpoint.data.samples import Samples
    >>> samples = Samples("grey", list("abcde"), lambda i: Image.new("RGB", (40, 30), (i, i, i)))
    >>> source = batch_source(samples, ViewSpec(size=16, crop_scale=(0.2, 1.0)), batch_size=2, workers=0)
    >>> source.steps_per_epoch, [batch.views[0].shape for batch in source.epoch(0, start=1)]
    (2, [torch.Size([2, 3, 16, 16])])
    """
    return BatchSource(samples, spec, batch_size, seed, workers, drop_last, on_error, device, share)


def plain_batches(
    samples: Samples,
    spec: ViewSpec,
    batch_size: int = 512,
    workers: int = 2,
    device: torch.device | str = "cpu",
    on_error: OnError = "stop",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every sample once, in order, as ids `(b,)` and pictures `(b, 3, size, size)` float32.

    The last batch may be short.

    spec: one view and nothing random; `spec.plain()` makes it of a training spec.
    on_error: with 'skip' the ids of bad pictures do not appear.
    Raises ValueError for a random spec, and for a bad picture.

    >>> from PIL import Image
    >>> from counterpoint.data.samples import Samples
    >>> samples = Samples("grey", list("abcde"), lambda i: Image.new("RGB", (40, 30), (i, i, i)))
    >>> spec = ViewSpec(size=16, count=1)
    >>> [ids.tolist() for ids, x in plain_batches(samples, spec, batch_size=2, workers=0)]
    [[0, 1], [2, 3], [4]]
    """
    if spec.is_random or spec.count != 1 or spec.pair_by is not None:
        raise ValueError(
            f"plain_batches shows each picture once as it is, but the spec has count={spec.count}"
            f"{' and random parts' if spec.is_random else ''}"
            f"{'' if spec.pair_by is None else f', pair_by={spec.pair_by}'}: use spec.plain()"
        )
    source = BatchSource(samples, spec, batch_size, 0, workers, False, on_error, device)
    batches = source._read(torch.split(torch.arange(len(samples)), batch_size), epoch=0, start=0)
    return ((batch.ids, batch.views[0]) for batch in batches)


class _Views(torch.utils.data.Dataset[Any]):
    """Views of one sample at a time, uint8 `(count, 3, size, size)`; runs in the workers."""

    def __init__(self, samples: Samples, spec: ViewSpec, seed: int, epoch: int) -> None:
        self.samples, self.spec, self.seed, self.epoch = samples, spec, seed, epoch
        self.transform = picture_transform(spec, normalise=False)

    def __getitem__(self, index: int | list[int]) -> tuple[int, Tensor] | _Bad:
        places = [index] if isinstance(index, int) else index
        pictures = []
        for place in places:
            picture = self._decoded(place)
            if isinstance(picture, _Bad):
                return picture
            pictures.append(picture)
        if isinstance(index, int):
            pictures *= self.spec.count
        # torchvision's transforms know only the global generator.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(_seed(SAMPLE, self.seed, self.epoch, places[0]))
            return places[0], torch.stack([self.transform(picture) for picture in pictures])

    def _decoded(self, place: int) -> Image.Image | _Bad:
        try:
            picture = self.samples.picture(place)
            if picture.mode != "RGB":
                raise ValueError(f"it has mode {picture.mode}, not RGB")
        except MemoryError:
            raise
        except Exception as error:
            # An exception would reach the user as the worker's traceback instead of in one line.
            return _Bad(place, " ".join(str(error).split()) or type(error).__name__)
        return picture


def _collate(items: list[tuple[int, Tensor] | _Bad]) -> tuple[Tensor, Tensor, list[_Bad]]:
    """ids `(n,)`, views `(count, n, 3, size, size)`, and what could not be read."""
    good = [item for item in items if not isinstance(item, _Bad)]
    bad = [item for item in items if isinstance(item, _Bad)]
    ids = torch.tensor([index for index, _ in good], dtype=torch.int64)
    views = torch.stack([views for _, views in good], dim=1) if good else torch.empty(0)
    return ids, views, bad


def _leave_signals_to_the_parent(worker: int) -> None:
    # A terminal and SLURM signal all processes of a job; the parent still needs this one to end its step.
    for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _in_memory(samples: Samples, device: torch.device) -> Tensor | None:
    """The pictures, where they are small and in memory; on the GPU if there is one and they fit well."""
    pictures = samples.tensor
    if pictures is None:
        return None
    if pictures.ndim != 4 or pictures.shape[1] != 3 or pictures.dtype != torch.uint8:
        raise ValueError(
            f"the tensor of data {samples.name!r} must be (n, 3, h, w) uint8, "
            f"got {tuple(pictures.shape)} {pictures.dtype}"
        )
    if max(pictures.shape[2:]) > LARGEST_IN_MEMORY:
        return None
    return pictures.to(device) if pictures.numel() <= RESIDENT_BYTES else pictures


def _part(batch_size: int, place: int, parts: int) -> slice:
    """Which rows of a batch are those of one process."""
    if not 0 <= place < parts:
        raise ValueError(f"share must be (k, m) with k in 0..m-1, got {(place, parts)}")
    if batch_size < parts:
        raise ValueError(f"batch_size={batch_size} is too small to share among {parts} processes")
    return slice(place * batch_size // parts, (place + 1) * batch_size // parts)


def _usable(device: torch.device | str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        # torch raises AssertionError where it is built without CUDA
        raise ValueError(f"device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from None


def _seed(*words: int) -> int:
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])


def _generator(*words: int) -> torch.Generator:
    return torch.Generator().manual_seed(_seed(*words))
