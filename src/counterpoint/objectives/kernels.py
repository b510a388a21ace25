r"""Kernels on unit vectors, for the support vector machines of `MMCL`.

A kernel is a callable from `(r, d)` and `(m, d)` to `(r, m)`. K(z, z) is whatever it says: 1 for linear, rbf
and laplace, (1 + offset)^degree for the polynomial, tanh(gamma) for tanh, the sum of the positive parts of z
for min. Its gradient is autograd's. Any callable of that form is accepted where these are; one that is not
positive semidefinite, like tanh, has no largest margin to find.

    linear      x . y
    rbf         exp(-|x - y|^2 / sigma)
    laplace     exp(-|x - y| / sigma)
    poly        (x . y + offset)^degree
    tanh        tanh(gamma x . y)                      not positive semidefinite
    min         sum_k min(relu(x_k), relu(y_k))        histogram intersection

Source: Shah et al., "Max-margin contrastive learning", AAAI 2022, and its released code, which divides the
squared distance by sigma: a squared bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from counterpoint.objectives.checks import not_negative, positive
from counterpoint.objectives.first_order import first_order
from counterpoint.objectives.rows import products

Kernel = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Linear:
    """x . y

    >>> Linear()(torch.eye(2), torch.eye(2))
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return products(x, y)


@dataclass(frozen=True)
class RBF:
    """exp(-|x - y|^2 / sigma) of unit vectors; sigma is a squared bandwidth, above 0.

    >>> RBF(sigma=2.0)(torch.eye(2), torch.eye(2))
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """

    sigma: float = 10.0

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return products(x, y).sub_(1).mul_(2 / self.sigma).exp_()


@dataclass(frozen=True)
class Laplace:
    """exp(-|x - y| / sigma) of unit vectors; sigma above 0.

    >>> Laplace(sigma=1.0)(torch.eye(2), torch.eye(2)).round(decimals=3)
    tensor([[1.0000, 0.2430],
            [0.2430, 1.0000]])
    """

    sigma: float = 1.0

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        # By differences: the root of a distance from products is off by 5e-4 in float32 where points are
        # near, and the kernel is then not semidefinite. The gradient is 0 where they coincide.
        distance = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
        return (-distance / self.sigma).exp()


@dataclass(frozen=True)
class Polynomial:
    """(x . y + offset)^degree; degree a whole number from 1 to 100, offset not negative.

    >>> Polynomial()(torch.eye(2), torch.eye(2))
    tensor([[3.3750, 0.1250],
            [0.1250, 3.3750]])
    """

    degree: int = 3
    offset: float = 0.5

    def __post_init__(self) -> None:
        if type(self.degree) is not int or not 1 <= self.degree <= 100:
            raise ValueError(f"degree must be a whole number from 1 to 100, got {self.degree!r}")
        not_negative("offset", self.offset)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return (products(x, y) + self.offset) ** self.degree


@dataclass(frozen=True)
class Tanh:
    """tanh(gamma x . y); gamma above 0. Not positive semidefinite: needs a finite C.

    >>> Tanh()(torch.eye(2), torch.eye(2)).round(decimals=3)
    tensor([[0.7620, 0.0000],
            [0.0000, 0.7620]])
    """

    gamma: float = 1.0
    semidefinite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("gamma", self.gamma)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.gamma * products(x, y)).tanh()


@dataclass(frozen=True)
class Min:
    """sum_k min(relu(x_k), relu(y_k)), the histogram intersection.

    >>> Min()(torch.tensor([[0.6, 0.8]]), torch.tensor([[0.8, 0.6]]))
    tensor([[1.2000]])
    """

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = _Intersection.apply(x.relu(), y.relu())
        return result


class _Intersection(torch.autograd.Function):
    """Written by hand because autograd would keep an `(r, m)` tensor for every coordinate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        total = x.new_zeros(len(x), len(y))
        for k in range(x.shape[1]):
            total += torch.minimum(x[:, k, None], y[None, :, k])
        return total

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        for_x, for_y = torch.empty_like(x), torch.empty_like(y)
        for k in range(x.shape[1]):
            # Where both are equal each has half, as torch.minimum has it.
            share = (x[:, k, None] < y[None, :, k]).to(x.dtype) + (x[:, k, None] == y[None, :, k]) / 2
            for_x[:, k] = (grad * share).sum(1)
            for_y[:, k] = (grad * (1 - share)).sum(0)
        return for_x, for_y


def semidefinite(kernel: Kernel) -> bool:
    """Whether the kernel counts as positive semidefinite: all do that do not say otherwise.

    >>> semidefinite(RBF()), semidefinite(Tanh())
    (True, False)
    """
    return bool(getattr(kernel, "semidefinite", True))


KERNELS: dict[str, Callable[[float], Kernel]] = {
    "linear": lambda sigma: Linear(),
    "rbf": RBF,
    "laplace": Laplace,
    "poly": lambda sigma: Polynomial(),
    "tanh": lambda sigma: Tanh(),
    "min": lambda sigma: Min(),
}
"""Every kernel by its name, made from `sigma`; the ones without a bandwidth have their own defaults."""
