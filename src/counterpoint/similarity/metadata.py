"""How alike samples are by columns of a table: numbers and categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from counterpoint.data.samples import UNLABELLED
from counterpoint.similarity.checks import check_labels
from counterpoint.similarity.graph import SimilarityGraph

SAMPLED = 2048


class MetadataGraph(SimilarityGraph):
    """Samples are as alike as their rows in a table: a weighted mean over columns.

    numbers: columns `(n,)` of numbers, NaN where one is missing. Two samples x and y are alike by
        exp(-(x - y)^2 / (2 b^2)).
    categories: columns `(n,)` of integers, -1 where one is missing. Two samples are alike (1) or not (0).
    weights: of columns by name, above 0; 1 for those not named. They are divided by their sum.
    bandwidths: b of number columns by name; by default the median distance of two samples of the column (of
        at most 2,048, evenly spaced), or 1 where most are equal.

    name: by default the columns, those of numbers with their bandwidth.

    A missing value is related to nothing: the column then counts 0 for that pair. The diagonal is 1.

    Raises ValueError on no columns, columns of different lengths, a column without any value, and names in
    weights or bandwidths that are no column.

    >>> size = torch.tensor([1.0, 2.0, float("nan")])
    >>> graph = MetadataGraph({"size": size}, {"colour": torch.tensor([0, 1, 0])}, bandwidths={"size": 1.0})
    >>> graph.batch(torch.arange(3))
    tensor([[1.0000, 0.3033, 0.5000],
            [0.3033, 1.0000, 0.0000],
            [0.5000, 0.0000, 1.0000]])
    """

    def __init__(
        self,
        numbers: Mapping[str, Tensor] | None = None,
        categories: Mapping[str, Tensor] | None = None,
        *,
        weights: Mapping[str, float] | None = None,
        bandwidths: Mapping[str, float] | None = None,
        name: str | None = None,
    ) -> None:
        numbers, categories = dict(numbers or {}), dict(categories or {})
        if not numbers and not categories:
            raise ValueError("a metadata graph needs a column of numbers or of categories, got none")
        if both := sorted(numbers.keys() & categories.keys()):
            raise ValueError(f"column {both[0]!r} is given as numbers and as categories: choose one")
        _named(weights or {}, [*numbers, *categories], "weights")
        _named(bandwidths or {}, [*numbers], "bandwidths")
        self.numbers = {column: _numbers(column, value) for column, value in numbers.items()}
        self.categories = {column: check_labels(value) for column, value in categories.items()}
        lengths = {column: len(value) for column, value in [*self.numbers.items(), *self.categories.items()]}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns differ in length: {', '.join(f'{c} {n}' for c, n in lengths.items())}")
        self.n = next(iter(lengths.values()))
        for column, value in self.categories.items():
            if not bool((value != UNLABELLED).any()):
                raise ValueError(f"column {column!r} has no value: all of them are missing")
        raw = {column: float((weights or {}).get(column, 1.0)) for column in lengths}
        largest = max(raw.values())  # of 1e308 a sum is not finite
        total = sum(weight / largest for weight in raw.values())
        self.weights = {column: weight / largest / total for column, weight in raw.items()}
        self.bandwidths = {
            column: float((bandwidths or {}).get(column, 0)) or median_distance(value)
            for column, value in self.numbers.items()
        }
        told = [f"{column} \u00b1 {b:.3g}" for column, b in self.bandwidths.items()]
        self.name = f"metadata ({', '.join([*told, *self.categories])})" if name is None else name

    def __len__(self) -> int:
        return self.n

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        total = torch.zeros(len(rows), len(columns), device=rows.device)
        for name, value in self.numbers.items():
            # In float64: dates in seconds differ by less than a float32 of them can tell.
            x, y = value.to(rows.device)[rows], value.to(rows.device)[columns]
            alike = torch.exp(-0.5 * ((x[:, None] - y) / self.bandwidths[name]).square())
            total += self.weights[name] * alike.nan_to_num_(nan=0.0).float()
        for name, labels in self.categories.items():
            a, b = labels.to(rows.device)[rows], labels.to(rows.device)[columns]
            total += self.weights[name] * ((a[:, None] == b) & (b != UNLABELLED))
        return total.clamp_(max=1.0).masked_fill_(rows[:, None] == columns, 1.0)


def median_distance(values: Tensor) -> float:
    """The median distance of two different samples that have a value, or 1 where that is 0.

    >>> median_distance(torch.tensor([1.0, 2.0, 4.0, float("nan")]))
    2.0
    """
    known = values[~values.isnan()].double()
    if len(known) > SAMPLED:
        # In float64: float32 rounds the last of 20 million rows to one that is not there.
        known = known[torch.linspace(0, len(known) - 1, SAMPLED, dtype=torch.float64).long()]
    if len(known) < 2:
        return 1.0
    distance = torch.pdist(known[:, None], p=1).median()
    return float(distance) or 1.0


def _numbers(column: str, value: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.ndim != 1 or value.is_complex() or value.dtype == torch.bool:
        raise ValueError(f"column {column!r} must be a tensor of real numbers of shape (n,)")
    value = value.double()
    if not len(value) or bool(value.isnan().all()):
        raise ValueError(f"column {column!r} has no value: all of them are missing")
    if bool(value.isinf().any()):
        raise ValueError(f"column {column!r} is infinite in row {int(value.isinf().nonzero()[0])}")
    return value


def _named(given: Mapping[str, float], columns: Sequence[str], what: str) -> None:
    for name, value in given.items():
        if name not in columns:
            raise ValueError(
                f"{what} names {name!r}, which is no such column: {', '.join(columns) or 'none'}"
            )
        if isinstance(value, bool) or not 0 < value < float("inf"):
            raise ValueError(f"{what} of {name!r} must be a finite number above 0, got {value}")
