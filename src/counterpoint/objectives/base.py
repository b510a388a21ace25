"""What every objective is: views in, scalar out, and a log for those who ask."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from counterpoint.objectives.checks import check_finite
from counterpoint.objectives.tiles import Tiles

Log = dict[str, Tensor]
SIDES = ("labels", "target", "ids", "negatives")


@dataclass(frozen=True)
class Known:
    """What is known of the samples of a batch beside their views; see `Objective` for each."""

    labels: Tensor | None = None
    target: Tensor | Tiles | None = None
    ids: Tensor | None = None
    anchors: slice | None = None
    negatives: Tensor | None = None

    def only(self, accepted: Collection[str]) -> Known:
        """The same without what is not accepted."""
        return replace(self, **{side: None for side in SIDES if side not in accepted})

    def anchored(self, n: int) -> slice:
        """Which of n samples are anchors, start and stop written out; ValueError where they are none.

        >>> Known(anchors=slice(2, None)).anchored(6)
        slice(2, 6, None)
        """
        if self.anchors is None:
            return slice(0, n)
        try:
            start, stop, step = self.anchors.indices(n)
            outside = any(
                end is not None and not -n <= end <= n for end in (self.anchors.start, self.anchors.stop)
            )
        except (AttributeError, TypeError, ValueError):  # no slice, or one of something else than numbers
            start, stop, step, outside = 0, 0, 0, True
        if step != 1 or start >= stop or outside:
            raise ValueError(
                f"anchors must be a slice of step 1 that holds some of the {n} samples, got {self.anchors!r}"
            )
        return slice(start, stop)


class Objective(nn.Module, ABC):
    """A contrastive objective: `objective(z0, z1, ...)` is a scalar tensor.

    Views are `(n, d)` floating tensors, one per positional argument, row i of each from sample i. They need
    not be normalised. What else is known of the samples goes by name:

    labels: `(n,)` integers, the class of each sample, -1 for none.
    target: `(n, n)` floating, how similar the samples are to each other; or `Tiles` of it.
    ids: `(n,)` integers, equal where two rows are the same sample.
    negatives: `(m, d)` floating, m from 0: vectors that are candidates of every anchor and positives of none,
        such as a queue's. They get no gradient.

    anchors: a slice of the samples. The loss is then the mean over the anchors among these alone, and all
        samples stay their candidates: what one of several processes computes of a batch that they share.
        `target` may then have the anchors' rows alone, `(anchors, n)`. QARe, which is no mean over anchors,
        is that of all samples whatever they are.

    `accepts` says which of the first four an objective uses, `requires` which it cannot do without. One it
    does not use, or one left out that it requires, is a ValueError.

    Values are read only where that is free. `forward` reports a NaN in `target` if it is on the CPU;
    `with_log` reports a non-finite view, target or negative on any device. A NaN in a view gives `forward` a
    NaN loss; MMCL, whose solver must read its views, refuses it.

    To write one, fill in `evaluate`. Over several processes (`counterpoint.ranks`) that is enough for the
    exact loss, computed whole in each of them. One whose `evaluate` heeds `known.anchors` sets `by_anchors`,
    and each process then computes its own part; `combine` and `largest` say how the parts make the whole,
    where it is not by their means. One that needs only sums over the samples gives them by `moments`.

    >>> from counterpoint.objectives import Hinge, NTXent
    >>> objective = NTXent(tau=0.5) + 0.1 * Hinge(margin=0.2)
    >>> loss, log = objective.with_log(torch.eye(4), torch.eye(4))
    >>> sorted(log)[:3]
    ['accuracy', 'active', 'candidates']
    """

    accepts: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    by_anchors: bool = False
    largest: tuple[str, ...] = ()
    """What of its log is not a mean over the anchors, but the largest there is."""

    @property
    def name(self) -> str:
        """How messages call it."""
        return type(self).__name__

    @property
    def averages(self) -> bool:
        """Whether losses of parts of the anchors average to the loss of all, by their shares of the samples.

        True for all but `NTXent(reduction="log_mean")`, whose parts `combine` otherwise.
        """
        return True

    def combine(self, losses: Tensor, shares: Tensor) -> Tensor:
        """The loss of a batch from those of its parts, `(parts,)` each, a scalar with a gradient.

        losses: the loss with `anchors` set to each of several slices that make up the batch.
        shares: the share of the samples that each slice holds; they add up to 1.

        >>> from counterpoint.objectives import NTXent
        >>> z, objective = torch.eye(4), NTXent(reduction="log_mean")
        >>> parts = [objective(z, z, anchors=slice(0, 1)), objective(z, z, anchors=slice(1, 4))]
        >>> objective.combine(torch.stack(parts), torch.tensor([0.25, 0.75])), objective(z, z)
        (tensor(0.5944), tensor(0.5944))
        """
        return (losses * shares).sum()

    def streams(self, n: int, views: int = 2) -> bool:
        """Whether a target of n samples, of which so many views are taken, is best given as `Tiles`.

        No table of all scores is made then either.
        """
        return False

    @abstractmethod
    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        """The loss, and its log with the key "loss" first; an empty log where `with_log` is false."""

    def forward(
        self,
        *views: Tensor,
        labels: Tensor | None = None,
        target: Tensor | Tiles | None = None,
        ids: Tensor | None = None,
        anchors: slice | None = None,
        negatives: Tensor | None = None,
    ) -> Tensor:
        """The loss, a scalar tensor with a gradient. Nothing is computed for the log."""
        known = Known(labels, target, ids, anchors, negatives)
        self.check(known)
        return self.evaluate(views, known, with_log=False)[0]

    def with_log(
        self,
        *views: Tensor,
        labels: Tensor | None = None,
        target: Tensor | Tiles | None = None,
        ids: Tensor | None = None,
        anchors: slice | None = None,
        negatives: Tensor | None = None,
    ) -> tuple[Tensor, Log]:
        """The loss, and a dict of detached 0-d tensors that says more about it.

        loss: the value. chance: the loss where all candidates score alike, ln(candidates) for softmax.
        accuracy: share of anchors whose best-scored candidate is a positive; a tie counts by its share.
        target_entropy: mean entropy of the targets, the least the loss can be. kl: what is left above it.
        support: mean number of candidates with a probability above 0, for maps other than softmax.
        candidates: how many each anchor chooses from. anchors_skipped: how many had no positive.
        active: share of margins not yet met (Triplet, Hinge, StructuredAssignment).
        """
        known = Known(labels, target, ids, anchors, negatives)
        self.check(known)
        self.check_values(views, known)
        loss, log = self.evaluate(views, known, with_log=True)
        return loss, {key: value.detach() for key, value in log.items()}

    def check(self, known: Known) -> None:
        """ValueError where a side argument is not used by the objective, or a required one is missing."""
        accepted = f"it accepts {', '.join(self.accepts)}" if self.accepts else "it accepts only views"
        for name in SIDES:
            given = getattr(known, name) is not None
            if given and name not in self.accepts:
                raise ValueError(f"{self.name} does not use {name}; {accepted}")
            if not given and name in self.requires:
                raise ValueError(f"{self.name} requires {name}, given by name: {name}=...; {accepted}")

    def check_values(self, views: Sequence[Tensor], known: Known) -> None:
        """ValueError where a view, the target or a negative has a value that is not finite."""
        for i, z in enumerate(views):
            if isinstance(z, Tensor):
                check_finite(f"{self.name}: view {i}", z)
        for name, values in (("target", known.target), ("negatives", known.negatives)):
            if isinstance(values, Tensor):
                check_finite(name, values)

    def combine_log(self, logs: Mapping[str, Tensor], shares: Tensor) -> Log:
        """The log of a batch from those of its parts, `(parts,)` for each key, and their shares."""
        return {
            key: values.amax() if key in self.largest else (values * shares).sum()
            for key, values in logs.items()
        }

    def moments(self, views: Sequence[Tensor], n: int) -> tuple[Tensor, ...] | None:
        """Sums over these samples from which, added up over all n there are, the loss follows; None: none."""
        return None

    def from_moments(self, moments: Sequence[Tensor], n: int, with_log: bool) -> tuple[Tensor, Log]:
        """What `evaluate` gives, from the `moments` of all n samples."""
        raise NotImplementedError(f"{self.name} is no function of moments")

    def __add__(self, other: Objective) -> WeightedSum:
        if not isinstance(other, Objective):
            return NotImplemented
        (left, v), (right, w) = _terms(self), _terms(other)
        return WeightedSum(left + right, v + w)

    def __mul__(self, weight: float) -> WeightedSum:
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            return NotImplemented
        terms, weights = _terms(self)
        return WeightedSum(terms, [weight * w for w in weights])

    __rmul__ = __mul__


class WeightedSum(Objective):
    """A weighted sum of objectives, itself an objective; `NTXent() + 0.5 * Hinge()` writes one.

    Each term is given the side arguments it accepts, and its parameters are the sum's. A term is called by
    its class name in lower case, a second one of the same class by that and "_2"; the log has every entry of
    a term as "term/key". Without a prefix, `loss` is the total. `chance` and `target_entropy` are the
    weighted sums over the terms, one that has none counting with its loss, and `kl` is the total less that
    entropy. The other keys are from the first term that has them.

    Raises ValueError on no terms, one that is no objective, a weight that is not finite, or not one weight
    per term.

    >>> from counterpoint.objectives import InfoNCE
    >>> total = WeightedSum([InfoNCE(tau=0.1), InfoNCE(tau=1.0)], [1.0, 0.5])
    >>> [key for key in total.with_log(torch.eye(2), torch.eye(2))[1] if key.endswith("loss")]
    ['loss', 'infonce/loss', 'infonce_2/loss']
    """

    def __init__(self, terms: Sequence[Objective], weights: Sequence[float]) -> None:
        super().__init__()
        if not terms or len(terms) != len(weights):
            raise ValueError(
                f"a sum needs one weight per term, got {len(terms)} terms and {len(weights)} weights"
            )
        if not all(isinstance(term, Objective) for term in terms):
            kinds = ", ".join(type(term).__name__ for term in terms)
            raise ValueError(f"the terms of a sum must be objectives, got {kinds}")
        if not all(isinstance(w, int | float) and math.isfinite(w) for w in weights):
            raise ValueError(f"weights must be finite, got {', '.join(str(w) for w in weights)}")
        self.terms = nn.ModuleList(terms)
        self.weights = tuple(float(w) for w in weights)
        self.accepts = tuple(side for side in SIDES if any(side in term.accepts for term in terms))
        self.requires = tuple(side for side in SIDES if any(side in term.requires for term in terms))

    @property
    def name(self) -> str:
        return " + ".join(
            term.name if weight == 1 else f"{weight:g} * {term.name}" for term, weight in self._weighted()
        )

    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        # Last term first: the backward pass goes the other way, and a regulariser at the end of a sum, whose
        # gradient is small beside what the main loss keeps for its own, then waits until that is freed.
        evaluated = [
            term.evaluate(views, known.only(term.accepts), with_log) for term, _ in reversed(self._weighted())
        ]
        return self.total(evaluated[::-1], with_log)

    def total(self, evaluated: Sequence[tuple[Tensor, Log]], with_log: bool) -> tuple[Tensor, Log]:
        """The sum and its log from the loss and the log of each term."""
        logs, losses, seen = {}, [], Counter[str]()
        for (term, weight), (loss, log) in zip(self._weighted(), evaluated, strict=True):
            key = type(term).__name__.lower()
            seen[key] += 1
            logs[key if seen[key] == 1 else f"{key}_{seen[key]}"] = log
            losses.append(weight * loss)
        total = torch.stack(losses).sum()
        if not with_log:
            return total, {}
        merged = {"loss": total}
        for log in logs.values():
            for key, value in log.items():
                merged.setdefault(key, value)
        for key in {"chance", "target_entropy"} & merged.keys():
            values = [
                weight * log[key] if key in log else loss
                for weight, loss, log in zip(self.weights, losses, logs.values(), strict=True)
            ]
            merged[key] = torch.stack([value.to(total) for value in values]).sum()
        if "target_entropy" in merged:
            merged["kl"] = total - merged["target_entropy"]
        for term_key, log in logs.items():
            merged.update({f"{term_key}/{key}": value for key, value in log.items()})
        return total, merged

    def streams(self, n: int, views: int = 2) -> bool:
        return any("target" in term.accepts and term.streams(n, views) for term, _ in self._weighted())

    @property
    def averages(self) -> bool:
        return all(term.averages for term, _ in self._weighted())

    def combine(self, losses: Tensor, shares: Tensor) -> Tensor:
        if not self.averages:
            raise ValueError(f"{self.name} cannot be combined as a whole: combine the parts of each term")
        return super().combine(losses, shares)

    def extra_repr(self) -> str:
        return f"weights={self.weights}"

    def _weighted(self) -> list[tuple[Objective, float]]:
        return list(zip(cast(list[Objective], list(self.terms)), self.weights, strict=True))


def _terms(objective: Objective) -> tuple[list[Objective], list[float]]:
    if isinstance(objective, WeightedSum):
        return cast(list[Objective], list(objective.terms)), list(objective.weights)
    return [objective], [1.0]
