"""Captions as a view: beside the pictures of a batch, one text of each of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from counterpoint.data.batches import Batch, _generator
from counterpoint.data.samples import Samples

CAPTION = 4  # what the seed is for, beside ORDER to PAIR of `batches`

Tokenize = Callable[[Sequence[str]], Tensor]


class Keys(Protocol):
    """The key of the sample of an id."""

    def __getitem__(self, i: int, /) -> str: ...


class Source(Protocol):
    """What the loop asks of a source of batches; see `BatchSource`."""

    @property
    def steps_per_epoch(self) -> int: ...

    @property
    def skipped(self) -> Sequence[str]: ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...


class Captioned:
    """The batches of a source, each with a caption of every sample and, from `tokenize`, its tokens.

    Of the captions of a sample one is drawn each epoch: which one is a function of seed, epoch and sample,
    whatever the source does with its batches.

    tokenize: texts to `(n, length)` int64. device: where the tokens are put.

    Raises ValueError where the samples have no captions.

    >>> from PIL import Image
    >>> from counterpoint.data.batches import batch_source
    >>> from counterpoint.data.views import ViewSpec
    >>> two = [["a dot", "a point"], ["a line"]]
    >>> samples = Samples("two", ["a", "b"], lambda i: Image.new("RGB", (8, 8)), all_captions=two)
    >>> source = batch_source(samples, ViewSpec(size=8, count=1), batch_size=2, workers=0)
    >>> tokenize = lambda texts: torch.tensor([[len(text)] for text in texts])
    >>> captioned = Captioned(source, samples, tokenize)
    >>> drawn = {text for epoch in range(9) for batch in captioned.epoch(epoch) for text in batch.captions}
    >>> sorted(drawn)
    ['a dot', 'a line', 'a point']
    """

    def __init__(
        self,
        source: Source,
        samples: Samples,
        tokenize: Tokenize,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if samples.captions is None and samples.all_captions is None:
            raise ValueError(f"data {samples.name!r} has no captions, which a text tower is trained on")
        self.source, self.samples, self.tokenize, self.seed = source, samples, tokenize, seed
        self.device = torch.device(device)

    @property
    def steps_per_epoch(self) -> int:
        return self.source.steps_per_epoch

    @property
    def skipped(self) -> Sequence[str]:
        return self.source.skipped

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of the source, with captions and tokens."""
        chance = torch.rand(len(self.samples), generator=_generator(CAPTION, self.seed, epoch))
        for batch in self.source.epoch(epoch, start):
            captions = [
                drawn(self.samples.texts(i), x)
                for i, x in zip(batch.ids.tolist(), chance[batch.ids].tolist(), strict=True)
            ]
            yield with_tokens(replace(batch, captions=captions), self.tokenize, self.device)


def drawn(texts: Sequence[str], chance: float) -> str:
    """The text that a number in [0, 1) draws.

    >>> drawn(["a", "b"], 0.4), drawn(["a", "b"], 0.5)
    ('a', 'b')
    """
    return texts[int(chance * len(texts))]


def with_tokens(batch: Batch, tokenize: Tokenize, device: torch.device) -> Batch:
    """The batch with the tokens of its captions."""
    return replace(batch, tokens=tokenize(list(batch.captions or ())).to(device, non_blocking=True))
