r"""Eigenvalues of shifted cosine matrices, and their sorted products.

    S = shift + max(cos(z_i, z_j), clamp_min)

Without a clamp S = shift 11^T + UU^T, U the unit rows of z, has rank d + 1 at most. Its non-zero eigenvalues
are those of a (d + 1) x (d + 1) matrix:

* shift >= 0: the Gram matrix of [sqrt(shift) 1, U], one product;
* shift < 0, where S is indefinite: RJR^T from [sqrt(-shift) 1, U] = QR and J = diag(-1, 1, ..., 1).

Only eigenvalues are differentiated. Where f is a function of them and S = V diag(lam) V^T,
df/dS = V diag(df/dlam) V^T: nothing is divided by a difference of eigenvalues, so equal ones do no harm.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from counterpoint.objectives.first_order import first_order
from counterpoint.objectives.rows import SHORTEST, products


def cosine_spectrum(z: Tensor, shift: float = 0.0, clamp_min: float | None = None) -> Tensor:
    """Eigenvalues of S `(r,)`, ascending; the other n - r are 0.

    z: `(n, d)` float32 or float64. r is d + 1 (d where shift is 0), and n where that is not less or a clamp
        is given. A NaN in z gives NaN.

    >>> z = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0], [0.0, 1.0]])
    >>> cosine_spectrum(z, shift=1.0).tolist(), len(cosine_spectrum(z, clamp_min=0.0))
    ([0.0, 2.0, 6.0], 4)
    """
    n, d = z.shape
    with torch.autocast(z.device.type, enabled=False):
        if clamp_min is None and d + (shift != 0) < n:
            small = _Indefinite.apply(z, shift) if shift < 0 else small_gram(z, shift)
        else:
            small = shifted_cosines(unit(z), shift, clamp_min)
        return eigenvalues(small)


def small_gram(z: Tensor, shift: float) -> Tensor:
    """The Gram matrix of [sqrt(shift) 1, U], or of U where shift is 0: it has the non-zero eigenvalues of S.

    A sum over the samples: those of parts of a batch add up to that of the whole. Its gradient is right for
    functions whose own gradient is symmetric, as that of eigenvalues is.

    >>> z = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0], [0.0, 1.0]])
    >>> small_gram(z, shift=1.0)
    tensor([[4., 2., 2.],
            [2., 2., 0.],
            [2., 0., 2.]])
    """
    with torch.autocast(z.device.type, enabled=False):
        small: Tensor = _Gram.apply(z, shift)
    return small


def shifted_cosines(u: Tensor, shift: float, clamp_min: float | None) -> Tensor:
    """S `(n, n)` of unit rows `(n, d)`.

    >>> shifted_cosines(torch.tensor([[1.0], [-1.0]]), shift=1.0, clamp_min=-0.5)
    tensor([[2.0000, 0.5000],
            [0.5000, 2.0000]])
    """
    cosines = products(u, u)
    return (cosines if clamp_min is None else cosines.clamp_min(clamp_min)) + shift


def eigenvalues(symmetric: Tensor) -> Tensor:
    """Eigenvalues of a symmetric matrix, ascending, with the closed-form gradient; NaN where it holds NaN.

    >>> eigenvalues(torch.diag(torch.tensor([3.0, 1.0, 2.0])))
    tensor([1., 2., 3.])
    """
    values: Tensor = _Eigenvalues.apply(symmetric)
    return values


def with_zeros(values: Tensor, n: int) -> Tensor:
    """All n eigenvalues, ascending, from those that may not be 0.

    >>> with_zeros(torch.tensor([-1.0, 2.0]), 4)
    tensor([-1.,  0.,  0.,  2.])
    """
    if len(values) == n:
        return values
    sorted_values: Tensor = torch.cat([values, values.new_zeros(n - len(values))]).sort().values
    return sorted_values


def largest_product(a: Tensor, b: Tensor) -> Tensor:
    """The largest scalar product of two sorted spectra: both ascending.

    >>> largest_product(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor(11.)
    """
    return a.dot(b)


def smallest_product(a: Tensor, b: Tensor) -> Tensor:
    """The smallest scalar product of two sorted spectra: one ascending, the other descending.

    >>> smallest_product(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor(10.)
    """
    return a.dot(b.flip(0))


def unit(z: Tensor) -> Tensor:
    """Rows of length 1; one without a direction becomes 0."""
    unit_rows: Tensor = z * _scale(z)
    return unit_rows


def _scale(z: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    scale: Tensor = length.masked_fill(length < SHORTEST, math.inf).reciprocal()
    return scale


def _through_unit(grad: Tensor, u: Tensor, scale: Tensor) -> Tensor:
    """The gradient of z from that of its unit rows; overwrites `grad`."""
    along = torch.linalg.vecdot(grad, u)[:, None]
    return grad.addcmul_(u, along, value=-1).mul_(scale)


class _Gram(torch.autograd.Function):
    """[sqrt(shift) 1, U]^T [sqrt(shift) 1, U], without the column of zeros where shift is 0.

    The unit rows are made anew in the backward pass: nothing of the size of z is kept.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, shift: float) -> Tensor:
        scale = _scale(z)
        u = z * scale
        gram = u.T @ u
        if shift:
            small = gram.new_empty(len(gram) + 1, len(gram) + 1)
            small[1:, 1:] = gram
            small[0, 1:] = small[1:, 0] = u.sum(0) * math.sqrt(shift)
            small[0, 0] = shift * len(z)
            gram = small
        ctx.save_for_backward(z, scale)
        ctx.shift = shift
        return gram

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        z, scale = ctx.saved_tensors
        with torch.autocast(z.device.type, enabled=False):
            u = z * scale
            # What comes from `eigenvalues` is symmetric, so one product does for both factors.
            if ctx.shift:
                row = grad[0, 1:] * (2 * math.sqrt(ctx.shift))
                wide = torch.addmm(row, u, grad[1:, 1:], alpha=2)
            else:
                wide = (u @ grad).mul_(2)
            return _through_unit(wide, u, scale), None


class _Indefinite(torch.autograd.Function):
    """RJR^T, with the eigenvalues of UU^T + shift 11^T for a negative shift.

    Its gradient is right for functions of the eigenvalues only: those do not change as Q turns.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, shift: float) -> Tensor:
        scale = _scale(z)
        u = z * scale
        ones = z.new_full((len(z), 1), math.sqrt(-shift))
        q, r = torch.linalg.qr(torch.cat([ones, u], dim=1))
        ctx.save_for_backward(z, scale, q, r[:, 1:])
        small: Tensor = r[:, 1:] @ r[:, 1:].T - torch.outer(r[:, 0], r[:, 0])
        return small

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        z, scale, q, r = ctx.saved_tensors
        with torch.autocast(z.device.type, enabled=False):
            wide = q @ (grad @ r).mul_(2)
            return _through_unit(wide, z * scale, scale), None


class _Eigenvalues(torch.autograd.Function):
    """Eigenvalues of a symmetric matrix; the decomposition is made once, for both passes."""

    @staticmethod
    def forward(ctx: Any, symmetric: Tensor) -> Tensor:
        values, vectors = _eigh(symmetric)
        ctx.save_for_backward(vectors)
        return values

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        with torch.autocast(vectors.device.type, enabled=False):
            grad_symmetric: Tensor = (vectors * grad) @ vectors.T
        return grad_symmetric


def _eigh(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    try:
        values, vectors = torch.linalg.eigh(symmetric)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # A NaN among the views is reported by the caller of the objective, not by LAPACK.
        if not bool(symmetric.isfinite().all()):
            vectors = torch.full_like(symmetric, math.nan)
            return vectors[0].clone(), vectors
        values, vectors = torch.linalg.eigh(symmetric.double())
    return values.to(symmetric.dtype), vectors.to(symmetric.dtype)
