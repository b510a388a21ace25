r"""QARe: contrast the spectra of the similarities *within* each view, beside any loss between the views.

Each view has a matrix of its own, S_v = shift + max(cos(z_i, z_j), clamp_min), with eigenvalues lam_v in
ascending order. Matching two views as graphs is the quadratic assignment problem min_Y tr(S_A Y S_B Y^T) over
permutations Y, and for all of them

    <lam_A, lam_B>_-  <=  tr(S_A Y S_B Y^T)  <=  <lam_A, lam_B>_+

<>_+ sorts both ascending, <>_- one ascending and the other descending. The forms of the regulariser, each
divided by n (n - 1) and averaged over the pairs of views:

    code   <lam_A, lam_B>_+                        what the authors' code computes
    gap    <lam_A, lam_B>_+ - <lam_A, lam_B>_-     bounds by how much the true matching misses the optimum
    gt     tr(S_A S_B)      - <lam_A, lam_B>_-     a tighter bound of the same

All three are even in S: they are the same for costs -S as for similarities S. So shift = -1 gives the forms
for the distances 1 - cos. There S is indefinite, and a collapsed batch has S = 0, where "gap" and "gt" are
least; with a shift of 0 or above a collapsed batch has the largest "code", n / (n - 1) * (1 + shift)^2.

The authors clamp the cosines, at 1e-8. That is `clamp_min=1e-8`; it needs the n x n spectra, and negative
cosines get no gradient.

`reference="graph"` is ours, from no paper. It takes the spectrum of a target similarity instead of the other
view's, and the loss is the mean over views of |lam_v - lam_target|^2 / (n (n - 1)). By the theorem of Hoffman
and Wielandt this is the least distance |S_v - Q S_target Q^T|^2 over all rotations Q: the target is matched
as a whole, up to which sample stands where. It says nothing of who is similar to whom.

Paper: Moskalev, Sosnovik, Fischer, Smeulders, "Contrasting quadratic assignments for set-based representation
learning", ECCV 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from counterpoint.objectives.base import Known, Log, Objective
from counterpoint.objectives.checks import MODERATE, check_views, moderate, one_of, sample_similarity
from counterpoint.objectives.rows import products, shrunk
from counterpoint.objectives.spectra import (
    cosine_spectrum,
    eigenvalues,
    largest_product,
    shifted_cosines,
    small_gram,
    smallest_product,
    unit,
    with_zeros,
)
from counterpoint.objectives.tiles import Tiles

FORMS = ("code", "gap", "gt")
REFERENCES = ("view", "graph")
ASYMMETRY = 1e-4
"""A target that differs from its transpose by more than this has no spectrum to be compared with."""


@dataclass(frozen=True)
class _Options:
    form: str
    shift: float
    clamp_min: float | None
    reference: str


def qare(
    *views: Tensor,
    target: Tensor | None = None,
    form: str = "code",
    shift: float = 1.0,
    clamp_min: float | None = None,
    reference: str = "view",
) -> Tensor:
    """QARe of two or more views `(n, d)` with n >= 2, a scalar; of one or more with `reference="graph"`.

    target: similarity of the n samples to each other `(n, n)`, symmetric, on the scale of cosines; needed
        by `reference="graph"` and refused otherwise.
    form: "code", "gap" or "gt", see above; with `reference="graph"` there is only the default.
    shift: added to the cosines. Below 0 the matrix is indefinite; -1 makes it minus the distance 1 - cos.
    clamp_min: lower bound of the cosines, or of the target's entries.
    reference: whose spectrum each view's is compared with: the other "view"'s, or that of the "graph".

    Raises ValueError on views that do not fit together, a single sample, a target that is missing, unused or
    not symmetric, and options that are not among these.

    >>> z = torch.eye(4)
    >>> qare(z, z), qare(z, z, form="gap"), qare(z, target=torch.eye(4), reference="graph")
    (tensor(2.3333), tensor(1.3333), tensor(0.))
    """
    options = _checked(form, shift, clamp_min, reference)
    if options.reference == "view" and target is not None:
        raise ValueError('QARe uses target only with reference="graph"')
    spectra = _spectra(views, options)
    return _loss(spectra, len(views[0]), _traces(views, options), target, options)


def _checked(form: str, shift: float, clamp_min: float | None, reference: str) -> _Options:
    one_of("form", form, FORMS)
    one_of("reference", reference, REFERENCES)
    if reference == "graph" and form != "code":
        raise ValueError(
            f'form belongs to reference="view", got form={form!r} with reference="graph", '
            "where the loss is the squared difference of the spectra"
        )
    bound = None if clamp_min is None else moderate("clamp_min", clamp_min)
    return _Options(form, moderate("shift", shift), bound, reference)


def _spectra(views: Sequence[Tensor], options: _Options) -> list[Tensor]:
    """The eigenvalues of each view that may not be 0, each view's computed once."""
    check_views("QARe", views, fewest=1 if options.reference == "graph" else 2)
    if len(views[0]) == 1:
        raise ValueError(
            "QARe needs at least 2 samples, got 1: it divides by n (n - 1), the pairs of different samples; "
            "leave out a last batch of one sample (drop_last)"
        )
    return [cosine_spectrum(z, options.shift, options.clamp_min) for z in _precise(views)]


def _precise(views: Sequence[Tensor]) -> list[Tensor]:
    dtype = torch.float32
    for z in views:
        dtype = torch.promote_types(dtype, z.dtype)
    return [shrunk(z.to(dtype)) for z in views]


def _loss(
    spectra: Sequence[Tensor],
    n: int,
    traces: Sequence[Tensor] | None,
    target: Tensor | Tiles | None,
    options: _Options,
) -> Tensor:
    if options.reference == "graph":
        wanted = _target_spectrum(target, spectra[0], n, options)
        terms = [(with_zeros(values, n) - wanted).square().sum() for values in spectra]
    else:
        terms = [upper - lower for upper, lower in _bounds(spectra, n, traces, options)]
    return torch.stack(terms).mean() / (n * (n - 1))


def _bounds(
    spectra: Sequence[Tensor], n: int, traces: Sequence[Tensor] | None, options: _Options
) -> list[tuple[Tensor, Tensor | float]]:
    """For each pair of views the larger term of the form, and what is taken off it."""
    pairs = list(combinations(range(len(spectra)), 2))
    if options.form == "code" and (options.shift >= 0 and options.clamp_min is None):
        # The zeros left out are the lowest of both spectra and would meet each other.
        return [(largest_product(spectra[a], spectra[b]), 0.0) for a, b in pairs]
    whole = [with_zeros(values, n) for values in spectra]
    if options.form == "code":
        return [(largest_product(whole[a], whole[b]), 0.0) for a, b in pairs]
    return [
        (
            largest_product(whole[a], whole[b]) if traces is None else traces[k],
            smallest_product(whole[a], whole[b]),
        )
        for k, (a, b) in enumerate(pairs)
    ]


def _traces(views: Sequence[Tensor], options: _Options) -> list[Tensor] | None:
    """tr(S_A S_B) of each pair, without n x n matrices where the width is less than n and nothing clamps.

    None for the forms that do without.
    """
    if options.form != "gt":
        return None
    u = [unit(z) for z in _precise(views)]
    n, d = u[0].shape
    if options.clamp_min is not None or d >= n:
        s = [shifted_cosines(rows, options.shift, options.clamp_min) for rows in u]
        return [(a * b).sum() for a, b in combinations(s, 2)]
    return _small_traces(*_crossings(u), n, options.shift)


def _crossings(u: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Sums over the samples: of the unit rows of each view, `(V, d)`, and U_A^T U_B of each pair of views."""
    crosses = [products(a.T, b.T) for a, b in combinations(u, 2)]
    return torch.stack([rows.sum(0) for rows in u]), torch.stack(crosses)


def _small_traces(centres: Tensor, crosses: Tensor, n: int, shift: float) -> list[Tensor]:
    """tr(S_A S_B) of each pair from what `_crossings` gives."""
    return [
        cross.square().sum() + shift * (a.square().sum() + b.square().sum()) + (shift * n) ** 2
        for (a, b), cross in zip(combinations(centres, 2), crosses, strict=True)
    ]


def _target_spectrum(target: Tensor | Tiles | None, like: Tensor, n: int, options: _Options) -> Tensor:
    if target is None:
        raise ValueError('QARe requires target with reference="graph", given by name: target=...')
    similarity = sample_similarity("target", target, like=like.new_empty(n, 1))
    if similarity.device.type == "cpu":
        if (largest := float(similarity.abs().max())) > MODERATE:
            raise ValueError(
                f"target must be on the scale of cosines for QARe, between -{MODERATE} and {MODERATE}, "
                f"got an entry of size {largest:.3g}"
            )
        off = float((similarity - similarity.T).abs().max())
        if off > ASYMMETRY:
            raise ValueError(
                f"target must be symmetric for QARe, got entries that differ by {off:.3g} from those across "
                "the diagonal; (target + target.T) / 2 is symmetric"
            )
    symmetric = (similarity + similarity.T) / 2
    if options.clamp_min is not None:
        symmetric = symmetric.clamp_min(options.clamp_min)
    return eigenvalues(symmetric + options.shift)


class QARe(Objective):
    """Module form of `qare`; as a term: `NTXent(tau=0.5) + 0.75 * QARe()`.

    Its log has `effective_rank`, the exponential of the entropy of |lam| / sum |lam|, and
    `top_eigenvalue_share`, the largest |lam| over the same sum: of S with its shift, averaged over views.

    >>> loss, log = QARe().with_log(torch.eye(4), torch.eye(4))
    >>> loss, log["top_eigenvalue_share"]
    (tensor(2.3333), tensor(0.6250))
    """

    def __init__(
        self,
        form: str = "code",
        shift: float = 1.0,
        clamp_min: float | None = None,
        reference: str = "view",
    ) -> None:
        super().__init__()
        options = _checked(form, shift, clamp_min, reference)
        self.form, self.shift = options.form, options.shift
        self.clamp_min, self.reference = options.clamp_min, options.reference
        if reference == "graph":
            self.accepts = self.requires = ("target",)

    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        options = self._options()
        spectra = _spectra(views, options)
        loss = _loss(spectra, len(views[0]), _traces(views, options), known.target, options)
        return loss, _log(loss, spectra) if with_log else {}

    def moments(self, views: Sequence[Tensor], n: int) -> tuple[Tensor, ...] | None:
        """The small matrix of each view, `(V, d + 1, d + 1)`, and for "gt" what its traces need.

        None where the spectrum is not that of the small matrix: with a clamp, a negative shift, a width of
        the batch's size, or a target.
        """
        check_views("QARe", views, fewest=1 if self.reference == "graph" else 2)
        large = views[0].shape[1] + (self.shift != 0) >= n
        if self.reference == "graph" or self.clamp_min is not None or self.shift < 0 or large:
            return None
        z = _precise(views)
        grams = torch.stack([small_gram(rows, self.shift) for rows in z])
        return (grams, *_crossings([unit(rows) for rows in z])) if self.form == "gt" else (grams,)

    def from_moments(self, moments: Sequence[Tensor], n: int, with_log: bool) -> tuple[Tensor, Log]:
        options = self._options()
        spectra = [eigenvalues(gram) for gram in moments[0]]
        traces = _small_traces(moments[1], moments[2], n, self.shift) if self.form == "gt" else None
        loss = _loss(spectra, n, traces, None, options)
        return loss, _log(loss, spectra) if with_log else {}

    def _options(self) -> _Options:
        return _Options(self.form, self.shift, self.clamp_min, self.reference)

    def extra_repr(self) -> str:
        numbers = f"shift={self.shift}, clamp_min={self.clamp_min}"
        return f"form={self.form!r}, {numbers}, reference={self.reference!r}"


def _log(loss: Tensor, spectra: Sequence[Tensor]) -> Log:
    with torch.no_grad():
        shares = [_shares(values) for values in spectra]
        rank = torch.stack([torch.special.entr(share).sum().exp() for share in shares]).mean()
        top = torch.stack([share.max() for share in shares]).mean()
    return {"loss": loss, "effective_rank": rank, "top_eigenvalue_share": top}


def _shares(values: Tensor) -> Tensor:
    """Each |eigenvalue| as a share of their sum; 0 where all are 0."""
    size = values.abs()
    return size / size.sum().clamp_min(torch.finfo(size.dtype).tiny)
