"""An objective that is exact over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.objectives.base import SIDES, Known, Log, Objective, WeightedSum
from counterpoint.objectives.checks import check_views, sample_integers
from counterpoint.objectives.tiles import Tiles
from counterpoint.ranks.collectives import DTYPES, Ranks, by_rank

NO_SHAPE = (-1, -1)


class AcrossRanks(Objective):
    """An objective that is exact over the ranks: called with the local samples, it is the loss of all.

    objective: any objective, or sum of some. An objective of your own that knows nothing of anchors works
        too: each rank then computes the whole loss, n x n in place of n_local x n.
    group: the ranks that take part, by default all.

    Views, `labels` and `ids` are the local ones, and ranks may have unequal numbers of samples. `target` has
    a row for each local sample and a column for each sample of the batch, `(n_local, n)`:

        target = graph.between(ids, gather(ids))

    With a chunk_size it may be tiles of the whole instead, `graph.tiles(gather(ids))`: none is made in full.
    `negatives` are candidates of this rank's anchors: give all ranks the same ones.

    A learnable temperature is a shared weight like others; its gradient is averaged over the ranks here, so
    that it needs no DistributedDataParallel, and does not mind one.

    Without an initialised process group, or with one process, it is the objective itself.

    Raises, on all ranks, the ValueError that one rank's samples give, and names the rank; ValueError where
    the ranks differ in width or type, in the number of views, or in what they give by name.

    >>> from counterpoint.objectives import InfoNCE
    >>> AcrossRanks(InfoNCE(tau=0.5))(torch.eye(3), torch.eye(3))
    tensor(0.2395)
    """

    def __init__(self, objective: Objective, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        if not isinstance(objective, Objective):
            raise ValueError(f"objective must be an Objective, got {type(objective).__name__}")
        self.objective, self.group = objective, group
        self.accepts, self.requires = objective.accepts, objective.requires

    @property
    def name(self) -> str:
        return self.objective.name

    def streams(self, n: int, views: int = 2) -> bool:
        return self.objective.streams(n, views)

    def check(self, known: Known) -> None:
        # Over several ranks `evaluate` checks: one that raised here would leave the others waiting.
        if Ranks.of(self.group) is None:
            self.objective.check(known)

    def check_values(self, views: Sequence[Tensor], known: Known) -> None:
        if Ranks.of(self.group) is None:
            self.objective.check_values(views, known)

    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        ranks = Ranks.of(self.group)
        if ranks is None:
            return self.objective.evaluate(views, known, with_log)
        self._average_own_gradients()
        counts = self._agree(ranks, views, known, with_log)
        n, terms = sum(counts), list(_terms(self.objective))
        moments = {k: sums for k, term in enumerate(terms) if (sums := term.moments(views, n)) is not None}
        results: dict[int, tuple[Tensor, Log]] = {}
        if others := [k for k in range(len(terms)) if k not in moments]:
            batch = Batch.gathered(ranks, views, known, counts)
            # The last first, as in a sum.
            results = ranks.attempt(
                lambda: {k: _evaluate(terms[k], batch, with_log) for k in reversed(others)}
            )
            parts = [k for k in others if terms[k].by_anchors]
            wholes = _combine(batch, [terms[k] for k in parts], [results[k] for k in parts])
            results.update(zip(parts, wholes, strict=True))
        totals = iter(ranks.totals([part for sums in moments.values() for part in sums]))
        for k, sums in moments.items():
            results[k] = terms[k].from_moments([next(totals) for _ in sums], n, with_log)
        return _assemble(self.objective, (results[k] for k in range(len(terms))), with_log)

    def _agree(self, ranks: Ranks, views: Sequence[Tensor], known: Known, with_log: bool) -> list[int]:
        """The number of samples of each rank; ValueError on all where the ranks do not fit together."""
        numbers, error = [0] * (len(SIDES) + 7), None
        try:
            numbers = self._describe(views, known, with_log)
        except Exception as raised:
            error = raised
        counts, *columns = zip(*ranks.tell(numbers, error), strict=True)
        number, width, kind, log, *given = columns[: 4 + len(SIDES)]
        self._alike("as many views on every rank", number)
        self._alike("views of one width on every rank", width)
        self._alike("views of one type on every rank", [DTYPES[k] for k in kind])
        self._alike("the same call on every rank", [("forward", "with_log")[k] for k in log])
        for side, on in zip(SIDES, given, strict=True):
            self._alike(f"{side} on every rank or on none", [("none", side)[k] for k in on])
        n, shapes = sum(counts), list(zip(*columns[-2:], strict=True))
        if any(shape not in (NO_SHAPE, (a, n), (n, n)) for shape, a in zip(shapes, counts, strict=True)):
            raise ValueError(
                f"target must have a row for each sample of the rank and a column for each of the {n} of "
                f"all, {by_rank((a, n) for a in counts)}, got {by_rank(shapes)}; "
                "graph.between(ids, gather(ids)) gives it"
            )
        return list(counts)

    def _describe(self, views: Sequence[Tensor], known: Known, with_log: bool) -> list[int]:
        """This rank's batch in numbers; ValueError where it cannot be one by itself."""
        if known.anchors is not None:
            raise ValueError("anchors are chosen by AcrossRanks: those of a rank are its own samples")
        self.objective.check(known)
        check_views(self.name, views, fewest=1)
        for side in ("labels", "ids"):
            _integers(side, known, views[0])
        if with_log:
            self.objective.check_values(views, known)
        shape = _shape(known.target)
        if len(shape) != 2 or (isinstance(known.target, Tensor) and not known.target.is_floating_point()):
            raise ValueError(f"target must be floating and (n_local, n), got {_kind(known.target)} {shape}")
        kind = DTYPES.index(torch.stack([z[:0] for z in views]).dtype)
        given = [int(getattr(known, side) is not None) for side in SIDES]
        return [len(views[0]), len(views), views[0].shape[1], kind, int(with_log), *given, *shape]

    def _alike(self, what: str, values: Sequence[object]) -> None:
        if len(set(values)) > 1:
            raise ValueError(f"{self.name} needs {what}, got {by_rank(values)}")

    def _average_own_gradients(self) -> None:
        average = partial(_mean_over, self.group)
        for parameter in self.objective.parameters():
            if parameter.requires_grad and not getattr(parameter, "averaged_over_ranks", False):
                parameter.register_hook(average)  # type: ignore[no-untyped-call]
                # On the parameter: a deep copy of the objective has neither the hook nor this.
                parameter.averaged_over_ranks = True  # type: ignore[attr-defined]


def _mean_over(group: dist.ProcessGroup | None, grad: Tensor) -> Tensor:
    """The mean over the ranks there are by then: training may go on when their group is gone."""
    ranks = Ranks.of(group)
    return grad if ranks is None else ranks.mean(grad)


@dataclass(frozen=True)
class Batch:
    """The samples of all ranks, and what is known of them, at one rank.

    target: `(n_local, n)` as it was given, or `(n, n)`.
    """

    ranks: Ranks
    counts: Sequence[int]
    views: list[Tensor]
    known: Known

    @classmethod
    def gathered(cls, ranks: Ranks, views: Sequence[Tensor], known: Known, counts: Sequence[int]) -> Batch:
        """All views by one collective, labels and ids by one each."""
        everyone = ranks.rows(torch.stack(list(views), dim=1), counts).unbind(1)
        own_labels, own_ids = (_integers(side, known, views[0]) for side in ("labels", "ids"))
        labels, ids = (None if own is None else ranks.collect(own, counts) for own in (own_labels, own_ids))
        start = sum(counts[: ranks.rank])
        own = slice(start, start + counts[ranks.rank])
        return cls(ranks, counts, list(everyone), replace(known, labels=labels, ids=ids, anchors=own))

    @cached_property
    def shares(self) -> Tensor:
        """What part of the samples each rank has, `(ranks,)` float64."""
        counts = torch.tensor(self.counts, dtype=torch.float64, device=self.views[0].device)
        return counts / counts.sum()

    @cached_property
    def whole(self) -> Known:
        """What is known, without anchors: for an objective that has to see all rows of the target."""
        target = self.known.target
        if isinstance(target, Tensor) and len(target) != sum(self.counts):
            # In one type and place, whatever it is in on each rank.
            target = self.ranks.collect(target.detach().to(self.views[0]), self.counts)
        return replace(self.known, target=target, anchors=None)


def _shape(target: object) -> tuple[int, ...]:
    """Of a target, (n, n) for tiles of n samples; empty where it is neither, and NO_SHAPE for none."""
    if target is None:
        return NO_SHAPE
    if isinstance(target, Tensor):
        return tuple(target.shape)
    return (len(target),) * 2 if isinstance(target, Tiles) else ()


def _kind(target: object) -> str:
    return str(target.dtype if isinstance(target, Tensor) else type(target).__name__)


def _integers(side: str, known: Known, like: Tensor) -> Tensor | None:
    values = getattr(known, side)
    return None if values is None else sample_integers(side, values, like)


def _evaluate(term: Objective, batch: Batch, with_log: bool) -> tuple[Tensor, Log]:
    known = batch.known if term.by_anchors else batch.whole
    return term.evaluate(batch.views, known.only(term.accepts), with_log)


def _combine(
    batch: Batch, terms: Sequence[Objective], parts: Sequence[tuple[Tensor, Log]]
) -> list[tuple[Tensor, Log]]:
    """The loss and log of the whole batch of each term, from those of this rank's anchors."""
    if not terms:
        return []
    ranks, one_each = batch.ranks, [1] * batch.ranks.size
    losses = ranks.rows(torch.stack([loss for loss, _ in parts])[None], one_each).unbind(1)
    wholes = [
        term.combine(values, batch.shares.to(values)) for term, values in zip(terms, losses, strict=True)
    ]
    entries = [value.to(torch.float64) for _, log in parts for value in log.values()]
    if not entries:
        return [(loss, {}) for loss in wholes]
    gathered = iter(ranks.collect(torch.stack(entries).detach()[None], one_each).unbind(1))
    logs = []
    for term, (_, log), loss in zip(terms, parts, wholes, strict=True):
        combined = term.combine_log({key: next(gathered) for key in log}, batch.shares)
        logs.append({key: _like(combined[key], log[key]) for key in log} | {"loss": loss})
    return list(zip(wholes, logs, strict=True))


def _like(value: Tensor, local: Tensor) -> Tensor:
    return (value if local.is_floating_point() else value.round()).to(local.dtype)


def _terms(objective: Objective) -> Iterator[Objective]:
    """The objectives that a sum is made of, in order."""
    if isinstance(objective, WeightedSum):
        for term in objective.terms:
            yield from _terms(cast(Objective, term))
    else:
        yield objective


def _assemble(
    objective: Objective, results: Iterator[tuple[Tensor, Log]], with_log: bool
) -> tuple[Tensor, Log]:
    """The result of a sum from those of its terms, in the order of `_terms`."""
    if not isinstance(objective, WeightedSum):
        return next(results)
    parts = [_assemble(cast(Objective, term), results, with_log) for term in objective.terms]
    return objective.total(parts, with_log)
