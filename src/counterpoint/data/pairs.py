"""Which pictures make the views of an identity: one from each of several cameras, drawn anew every epoch."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from counterpoint.data.samples import UNLABELLED, Samples


class Pairs:
    """The identities of some samples that at least two cameras saw; a row of a batch is one of them.

    pair_by: the label column of cameras. identity: that of identities.
    left_out: how many identities were seen by one camera only. unknown: how many pictures have no identity or
        no camera. Both are left out, with a warning that says so.

    Raises ValueError where the samples lack one of the columns, and where no identity is left.

    >>> from counterpoint.data.shapes import shapes
    >>> pairs = Pairs(shapes("test", count=3, size=16, camera="both"), "camera")
    >>> drawn = pairs.draw(2, torch.Generator().manual_seed(0))
    >>> len(pairs), (drawn % 3).tolist()
    (3, [[0, 1, 2], [0, 1, 2]])
    """

    def __init__(self, samples: Samples, pair_by: str, identity: str = "identity") -> None:
        who, camera = samples.column(identity).values, samples.column(pair_by).values
        known = (who != UNLABELLED) & (camera != UNLABELLED)
        self.unknown = int((~known).sum())
        pictures = known.nonzero().flatten()
        # One group per identity and camera, side by side for each identity.
        group = who[pictures] * (int(camera.max()) + 1) + camera[pictures]
        pictures = pictures[group.argsort(stable=True)]
        _, size = torch.unique_consecutive(group.sort().values, return_counts=True)
        first = size.cumsum(0) - size
        _, seen_by = torch.unique_consecutive(who[pictures[first]], return_counts=True)
        paired = seen_by >= 2
        self.left_out = int((~paired).sum())
        kept = paired.repeat_interleave(seen_by)
        self._pictures, self._first, self._size = pictures, first[kept], size[kept]
        self._seen_by = seen_by[paired]
        self._say(samples.name, pair_by)

    def __len__(self) -> int:
        return len(self._seen_by)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Positions in the samples `(count, identities)`: row k is the picture that view k is made of.

        The cameras of an identity come in random order, each once before any comes again, and of a camera's
        pictures one is drawn.
        """
        owner = torch.arange(len(self)).repeat_interleave(self._seen_by)
        shuffled = (owner + torch.rand(len(owner), generator=generator, dtype=torch.float64)).argsort()
        start = self._seen_by.cumsum(0) - self._seen_by
        rows = []
        for k in range(count):
            group = shuffled[start + k % self._seen_by]
            chance = torch.rand(len(self), generator=generator, dtype=torch.float64)
            rows.append(self._pictures[self._first[group] + (chance * self._size[group]).long()])
        return torch.stack(rows)

    def _say(self, name: str, pair_by: str) -> None:
        found = []
        if self.left_out:
            found.append(f"{self.left_out} of {self.left_out + len(self)} identities have one {pair_by} only")
        if self.unknown:
            found.append(f"{self.unknown} pictures have no identity or no {pair_by}")
        if not len(self):
            raise ValueError(
                f"data {name!r} has no identity with two different values of {pair_by!r} to pair"
                + (f": {', '.join(found)}" if found else "")
            )
        if found:
            warnings.warn(f"data {name!r}: {', '.join(found)}; they are left out", stacklevel=4)
