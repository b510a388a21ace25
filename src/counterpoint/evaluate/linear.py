"""Linear probe: multinomial logistic regression on frozen features.

    minimise over W (d, K), b (K)   mean_i -log softmax(x_i W + b)[y_i] + l2 / 2 * |W|^2

The features `x` are standardised with the mean and deviation of the training split. The bias carries no
penalty. In scikit-learn's terms `C = 1 / (l2 * n)`.

The problem is convex, so the number does not depend on a learning rate or on when training stopped: L-BFGS
runs until `gap`, what is left to gain, is a small share of the loss. The objective is l2-strongly convex in
W, hence at most `|grad_W|^2 / (2 * l2)` is left to gain from W alone. The bias has no penalty; its part is
estimated with the curvature that the loss has at the start. The settings record the gap.

What makes it quick: in the eigenbasis of the feature covariance the penalty keeps its form, and dividing each
coordinate by the root of its curvature at the start cuts the number of steps by 3 to 4 on features as
ill-conditioned as those of a convolutional network; and a grid of strengths is walked from strong to weak,
each fit starting from the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from pydantic import JsonValue
from torch import Tensor

from counterpoint.evaluate.columns import Rows, labelled_rows
from counterpoint.evaluate.features import Features
from counterpoint.evaluate.record import Result

PROTOCOL = "linear"
VERSION = 1
L2 = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
CHUNK = 8192
EVALUATIONS = 1000
# The gap as a share of the loss: while choosing a strength, and for the reported fit.
CHOOSING, FINAL = 1e-2, 1e-3
# A strength so weak that it needs more passes is hardly ever the best; its fit is judged as it stands.
CHOOSING_EVALUATIONS = 50
# Below this many multiplications per pass the solver uses float64, which then costs nothing worth having.
SMALL = 1e8


@dataclass(frozen=True)
class Probe:
    """A fitted linear classifier.

    mean, scale `(d,)` standardise the features; weight `(d, K)`, bias `(K,)`, one column per class.
    classes: `(K,)`, the label of each column.
    found: the settings the fit came to by itself.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    classes: Tensor
    found: dict[str, JsonValue]

    def predict(self, h: Tensor) -> Tensor:
        """The label `(n,)` of each feature row `(n, d)`."""
        return self.classes[torch.addmm(self.bias, (h - self.mean) / self.scale, self.weight).argmax(dim=1)]


def linear_probe(
    train: Features,
    test: Features,
    column: str | None = None,
    l2: float | Sequence[float] = L2,
    seed: int = 0,
    validation: float = 0.1,
) -> Result:
    """Accuracy on `test` of a logistic regression fitted on `train`.

    Use when you want to know what a linear layer can read from the features, whatever their scale.
    Relations: `knn` asks for classes that lie close together, a linear probe only for classes that a plane
    divides. Published probes trained by SGD with augmentation give other numbers.

    column: the label column; None takes the first one of `train`. Rows without a label are dropped from both
        splits and counted in the settings.
    l2: the strength of the penalty, or several to choose from. The choice falls on the best accuracy on a
        part of `train` held out class by class, the stronger one among equals; `test` plays no part. The walk
        goes from strong to weak and ends after two strengths in a row below the best. The probe is then
        fitted again on all of `train`.
    seed: of the held-out part; it decides nothing where l2 is one number.
    validation: the share of each class held out, at least one sample of each class that has two.

    The settings say which strength was chosen, whether the fit converged, and the gap it ended with.

    Raises ValueError for a strength that is not above 0, for a validation share outside 0..1, when no sample
    can be held out, and for splits that do not fit together (see `labelled_rows`).

    >>> from counterpoint.data.samples import Labels
    >>> kinds = Labels(torch.tensor([0, 0, 1, 1]), ["x", "y"])
    >>> h = torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.0, 1.0], [0.2, 0.8]])
    >>> split = Features(h, keys=["a", "b", "c", "d"], labels={"kind": kinds}, name="toy")
    >>> result = linear_probe(split, split)
    >>> result.value, result.settings["l2_chosen"], result.settings["converged"]
    (1.0, 1.0, True)
    """
    return linear_probes(train, [test], column, l2, seed, validation)[0]


def linear_probes(
    train: Features,
    tests: Sequence[Features],
    column: str | None = None,
    l2: float | Sequence[float] = L2,
    seed: int = 0,
    validation: float = 0.1,
) -> list[Result]:
    """`linear_probe` on several test splits with one fit; one result per split.

    >>> from counterpoint.data.samples import Labels
    >>> kinds = Labels(torch.tensor([0, 0, 1, 1]), ["x", "y"])
    >>> split = Features(torch.eye(4), keys=["a", "b", "c", "d"], labels={"kind": kinds}, name="toy")
    >>> [result.value for result in linear_probes(split, [split, split], l2=0.1)]
    [1.0, 1.0]
    """
    if not tests:
        raise ValueError("tests must hold at least one split, got none")
    strengths = sorted(
        {float(l2)} if isinstance(l2, int | float) else {float(one) for one in l2}, reverse=True
    )
    if not strengths or not all(0 < one < float("inf") for one in strengths):
        raise ValueError(f"l2 must be one or more finite numbers > 0, got {l2}")
    if not 0 < validation < 1:
        raise ValueError(f"validation must lie between 0 and 1, got {validation}")
    splits = [labelled_rows(train, test, column) for test in tests]
    probe = fit_probe(splits[0].train, splits[0].train_labels, strengths, seed, validation)
    asked: dict[str, JsonValue] = {"l2": list(strengths), "seed": seed, "validation": validation}
    return [_score(probe, rows, asked) for rows in splits]


def fit_probe(h: Tensor, labels: Tensor, l2: Sequence[float], seed: int, validation: float) -> Probe:
    """Choose the strength among `l2`, strongest first, and fit on all rows: `h` `(n, d)`, `labels` `(n,)`.

    >>> h = torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.0, 1.0], [0.2, 0.8]])
    >>> fit_probe(h, torch.tensor([7, 7, 3, 3]), [0.1], seed=0, validation=0.1).predict(h).tolist()
    [7, 7, 3, 3]
    """
    classes, y = torch.unique(labels, return_inverse=True)
    k = len(classes)
    dtype = torch.float64 if h.numel() * k <= SMALL else torch.float32
    variance, mean = torch.var_mean(h.to(dtype), dim=0, correction=0)
    scale = variance.sqrt()
    # A column that only rounding moves carries nothing; dividing by its deviation would turn it into noise.
    constant = scale <= 1e-6 * mean.abs()
    scale = torch.where(constant, 1, scale)
    x = (h.to(dtype) - mean).div_(scale).masked_fill_(constant, 0)
    curvature, basis = torch.linalg.eigh((x.T @ x).double() / len(x))
    curvature, basis = curvature.clamp_min(0).to(dtype), basis.to(dtype)
    x = x @ basis

    found: dict[str, JsonValue] = {}
    start: tuple[Tensor, Tensor] | None = None
    strength = l2[0]
    if len(l2) > 1:
        strength, start, found = _choose(x, y, k, curvature, l2, seed, validation)
    fit = minimise(x, y, k, curvature, strength, FINAL, start)
    found |= {
        "l2_chosen": strength,
        "converged": fit.converged,
        "evaluations": fit.evaluations,
        "loss": fit.loss,
        "gap": fit.gap,
    }
    # Constant columns are zero in training, so no weight may act on what they are in test.
    weight = torch.where(constant[:, None], 0, basis @ fit.weight)
    return Probe(mean.float(), scale.float(), weight.float(), fit.bias.float(), classes, found)


@dataclass(frozen=True)
class Fit:
    """Where the solver ended: weight `(d, K)`, bias `(K,)`, and the gap that is left."""

    weight: Tensor
    bias: Tensor
    loss: float
    gap: float
    converged: bool
    evaluations: int


class _Stop(Exception):
    """Ends L-BFGS from inside its closure, at the point just evaluated."""


def minimise(
    x: Tensor,
    y: Tensor,
    k: int,
    curvature: Tensor,
    l2: float,
    tolerance: float,
    start: tuple[Tensor, Tensor] | None = None,
    evaluations: int = EVALUATIONS,
) -> Fit:
    """Penalised multinomial logistic regression, until `gap <= tolerance * loss`.

    x `(n, d)` with mean 0 and diagonal covariance `curvature` `(d,)`; y `(n,)` in 0..k-1, all present.
    Any other `x` and `curvature` give the same minimum, only later.

    >>> x, y = torch.tensor([[-1.0], [1.0], [-2.0], [2.0]]), torch.tensor([0, 1, 1, 0])
    >>> fit = minimise(x, y, 2, x.square().mean(0), l2=0.1, tolerance=1e-6)
    >>> fit.converged, fit.gap <= 1e-6 * fit.loss
    (True, True)
    """
    n, d = x.shape
    share = torch.bincount(y, minlength=k).to(x) / n
    weight, bias = start if start is not None else (torch.zeros(d, k).to(x), share.log())
    # The curvature of the objective at the class shares, W = 0: L-BFGS runs in coordinates where it is 1.
    variance = share * (1 - share)
    unit_w, unit_b = (variance * curvature[:, None] + l2).rsqrt(), variance.rsqrt()
    point = torch.cat([(weight / unit_w).flatten(), bias / unit_b])
    done, loss, gap = 0, float("inf"), float("inf")

    def closure() -> float:
        nonlocal done, loss, gap
        w, b = unit_w * point[: d * k].view(d, k), unit_b * point[d * k :]
        loss, grad_w, grad_b = _loss(x, y, w, b)
        loss += 0.5 * l2 * float(w.double().square().sum())
        grad_w += l2 * w
        # The bias has no penalty: its curvature is that of the loss at the start, or l2 where that is less.
        gap = float(grad_w.double().square().sum()) / (2 * l2)
        gap += float((grad_b.double().square() / variance.clamp_max(l2)).sum()) / 2
        done += 1
        if gap <= tolerance * loss or done == evaluations:
            raise _Stop
        point.grad = torch.cat([(unit_w * grad_w).flatten(), unit_b * grad_b])
        return loss

    lbfgs = torch.optim.LBFGS(
        [point],
        max_iter=evaluations,
        max_eval=evaluations,
        tolerance_grad=0.0,
        tolerance_change=1e-12,
        history_size=10,
        line_search_fn="strong_wolfe",
    )
    with suppress(_Stop):
        lbfgs.step(closure)  # type: ignore[no-untyped-call]
    weight, bias = unit_w * point[: d * k].view(d, k), unit_b * point[d * k :]
    return Fit(weight, bias, loss, gap, gap <= tolerance * loss, done)


def _loss(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
    """Mean cross-entropy and its gradients, in chunks of rows: the `(n, K)` logits never exist whole."""
    total, grad_w, grad_b = 0.0, torch.zeros_like(weight), torch.zeros_like(bias)
    for first in range(0, len(x), CHUNK):
        rows, truth = x[first : first + CHUNK], y[first : first + CHUNK, None]
        log_p = torch.addmm(bias, rows, weight).log_softmax(dim=1)
        total -= float(log_p.gather(1, truth).double().sum())
        residual = log_p.exp_().scatter_add_(1, truth, torch.full_like(truth, -1, dtype=x.dtype))
        grad_w.addmm_(rows.T, residual)
        grad_b += residual.sum(dim=0)
    return total / len(x), grad_w / len(x), grad_b / len(x)


def _choose(
    x: Tensor, y: Tensor, k: int, curvature: Tensor, l2: Sequence[float], seed: int, validation: float
) -> tuple[float, tuple[Tensor, Tensor], dict[str, JsonValue]]:
    """The strength with the best held-out accuracy, its weights, and what was tried."""
    held = _held_out(y, k, seed, validation)
    x_fit, y_fit, x_held, y_held = x[~held], y[~held], x[held], y[held]
    start: tuple[Tensor, Tensor] | None = None
    fits: list[tuple[Tensor, Tensor]] = []
    accuracies: list[float] = []
    for one in l2:
        fit = minimise(x_fit, y_fit, k, curvature, one, CHOOSING, start, CHOOSING_EVALUATIONS)
        start = fit.weight, fit.bias
        right = torch.addmm(fit.bias, x_held, fit.weight).argmax(dim=1) == y_held
        fits.append(start)
        accuracies.append(float(right.double().mean()))
        if max(accuracies[-2:]) < max(accuracies):
            break
    best = accuracies.index(max(accuracies))
    tried: list[JsonValue] = [[one, accuracy] for one, accuracy in zip(l2, accuracies, strict=False)]
    return l2[best], fits[best], {"l2_tried": tried, "validation_n": len(y_held)}


def _held_out(y: Tensor, k: int, seed: int, validation: float) -> Tensor:
    """`(n,)` bool: a seeded share of each class, never the whole of one."""
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(y), dtype=torch.bool)
    for one in range(k):
        members = (y == one).nonzero().flatten()
        count = min(max(1, round(validation * len(members))), len(members) - 1)
        held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    if not bool(held.any()):
        raise ValueError(
            f"no sample can be held out to choose l2: each of the {k} classes has one labelled sample. "
            "Give l2 as one number"
        )
    return held


def _score(probe: Probe, rows: Rows, asked: dict[str, JsonValue]) -> Result:
    right = int((probe.predict(rows.test) == rows.test_labels).sum())
    return Result(
        protocol=PROTOCOL,
        version=VERSION,
        value=right / len(rows.test),
        n=len(rows.test),
        settings={**rows.settings, **asked, **probe.found},
        chosen=tuple(probe.found),
    )
