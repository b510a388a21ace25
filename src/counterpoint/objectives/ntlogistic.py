r"""NT-Logistic: is this pair two views of one sample? Asked of every pair, each answer scored by itself.

    L = mean_i [ -log sigma(cos(z_i, z_i') / tau) - mean_{j != i, i'} log sigma(-cos(z_i, z_j) / tau) ]

i runs over all V * n views and i' is the other view of its sample. The negatives are averaged, so that they
weigh as much as the positive whatever the batch: the paper's table has one of each. Several positives, from
more than two views or from `ids`, are averaged too.

What a negative weighs in the gradient depends on its own cosine alone, not on how it compares with the
others. The paper finds it well behind NT-Xent; it is here to be compared with. (The paper's semi-hard choice
of negatives is not.)

Limits: cosines of 0 give 2 ln 2. A collapsed batch gives ln(1 + exp(-1/tau)) + ln(1 + exp(1/tau)). The last
term is of the negatives, and is 0 for an anchor that has none (n = 1).

Paper: Chen, Kornblith, Norouzi, Hinton, "A simple framework for contrastive learning of visual
representations", ICML 2020, table 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from counterpoint.objectives.base import Known, Log
from counterpoint.objectives.checks import positive
from counterpoint.objectives.row_objective import RowObjective
from counterpoint.objectives.rows import Rows, same_id, scores_all_views, target_all_views, unit_views


def ntlogistic(*views: Tensor, tau: float = 0.5, ids: Tensor | None = None) -> Tensor:
    """NT-Logistic of two or more views `(n, d)`, a scalar.

    tau: temperature, above 0; divides the cosines.
    ids: `(n,)` integers; samples with equal ids are positives of each other.

    Raises ValueError on views that do not fit together, a bad `tau` or bad `ids`.

    >>> import torch
    >>> z = torch.eye(3)
    >>> ntlogistic(z, z, tau=0.5)
    tensor(0.8201)
    """
    return _losses(_rows(views, positive("tau", tau), Known(ids=ids))).mean()


def _rows(views: Sequence[Tensor], tau: float, known: Known) -> Rows:
    z = unit_views("NTLogistic", views)
    anchors = known.anchored(len(z[0]))
    scores = scores_all_views(z, tau, anchors)
    target = target_all_views(same_id(known.ids, z[0], anchors), z, anchors)
    return Rows(scores, target, candidates=scores.shape[1] - 1)


def _losses(rows: Rows) -> Tensor:
    scores, target = rows.scores, rows.target
    # A score of -inf is no pair: its logistic loss as a negative, and the gradient of that, are exactly 0.
    if target.ndim == 1:
        index = target[:, None]
        attract = -logsigmoid(scores.gather(1, index)).squeeze(1)
        negatives = scores.scatter(1, index, -torch.inf)
        count = rows.candidates - 1
        return attract - logsigmoid(-negatives).sum(1) / max(1, count)
    chosen = target > 0
    attract = -(target * logsigmoid(scores.masked_fill(~chosen, 0))).sum(1)
    negatives = scores.masked_fill(chosen, -torch.inf)
    return attract - logsigmoid(-negatives).sum(1) / negatives.isfinite().sum(1).clamp_min(1)


class NTLogistic(RowObjective):
    """Module form of `ntlogistic`.

    >>> import torch
    >>> NTLogistic(tau=0.5)(torch.eye(3), torch.eye(3))
    tensor(0.8201)
    """

    accepts = ("ids",)

    def __init__(self, tau: float = 0.5) -> None:
        super().__init__()
        self.tau = positive("tau", tau)

    def rows(self, views: Sequence[Tensor], known: Known) -> Rows:
        return _rows(views, self.tau, known)

    def losses(self, rows: Rows) -> Tensor:
        return _losses(rows)

    def log(self, rows: Rows, losses: Tensor) -> Log:
        return {}

    def extra_repr(self) -> str:
        return f"tau={self.tau}"
