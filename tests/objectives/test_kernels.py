import pytest
import torch
from slow_mmcl import SLOW_KERNELS, gram, machine, unit
from slow_objectives import random_views
from torch import Tensor

from counterpoint.objectives.kernels import (
    KERNELS,
    RBF,
    Laplace,
    Linear,
    Min,
    Polynomial,
    Tanh,
    semidefinite,
)

ALL = [(name, sigma) for name in KERNELS for sigma in ((0.5, 10.0) if name in ("rbf", "laplace") else (1.0,))]
EACH = pytest.mark.parametrize(("name", "sigma"), ALL)
PROPER = pytest.mark.parametrize(("name", "sigma"), [(name, s) for name, s in ALL if name != "tanh"])


def units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64))


@EACH
def test_equals_the_formula_entry_by_entry(name: str, sigma: float):
    x, y = units(4, 6).requires_grad_(), units(5, 6, seed=1).requires_grad_()
    fast = KERNELS[name](sigma)(x, y)
    slow = torch.stack([torch.stack([SLOW_KERNELS[name](a, b, sigma) for b in y]) for a in x])
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-13)
    weight = torch.linspace(-1, 2, 20, dtype=torch.float64).reshape(4, 5)
    # The formulas differ off the sphere, so only what lies along it is compared.
    for fast_g, slow_g, z in zip(
        torch.autograd.grad((fast * weight).sum(), (x, y)),
        torch.autograd.grad((slow * weight).sum(), (x, y)),
        (x, y),
        strict=True,
    ):
        along = [g - (g * z).sum(1, keepdim=True) * z for g in (fast_g, slow_g)]
        torch.testing.assert_close(*along, rtol=1e-10, atol=1e-12)
        assert fast_g.abs().max() > 0


@EACH
def test_gradient(name: str, sigma: float):
    views = [z.detach().clone().requires_grad_() for z in (units(3, 4), units(4, 4, seed=2))]
    assert torch.autograd.gradcheck(KERNELS[name](sigma), views)


@EACH
def test_against_itself_and_in_single_precision(name: str, sigma: float):
    x = units(6, 5)
    k = KERNELS[name](sigma)(x, x)
    torch.testing.assert_close(k, k.T, rtol=1e-12, atol=1e-12)
    single = KERNELS[name](sigma)(x.float(), x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), k, rtol=1e-5, atol=1e-5)


@PROPER
@pytest.mark.parametrize(("n", "d"), [(3, 2), (9, 3), (12, 40)])
def test_delta_of_every_anchor_is_semidefinite(name: str, sigma: float, n: int, d: int):
    x = units(n, d, seed=n)
    x[n - 1] = x[0]
    k = KERNELS[name](sigma)(x, x).numpy()
    assert abs(k - gram(unit(x), SLOW_KERNELS[name], sigma)).max() < 1e-12
    for t in range(n):
        delta = machine(k, t, [j for j in range(n) if j != t], ridge=0)
        assert torch.linalg.eigvalsh(torch.from_numpy(delta)).min() > -1e-12


def test_delta_of_tanh_is_not():
    x = units(40, 3)
    assert torch.linalg.eigvalsh(Tanh(gamma=2.0)(x, x)).min() < -0.01
    assert not semidefinite(Tanh())
    assert all(semidefinite(KERNELS[name](1.0)) for name in KERNELS if name != "tanh")
    assert semidefinite(lambda x, y: x @ y.T)


def test_kernel_of_a_point_with_itself():
    x = units(5, 4)
    expected = {
        Linear(): torch.ones(5),
        RBF(0.3): torch.ones(5),
        Laplace(0.3): torch.ones(5),
        Polynomial(): torch.full((5,), 3.375),
        Polynomial(degree=2, offset=1.0): torch.full((5,), 4.0),
        Tanh(gamma=0.5): torch.full((5,), 0.5).tanh(),
        Min(): x.relu().sum(1),
    }
    for kernel, diagonal in expected.items():
        torch.testing.assert_close(kernel(x, x).diagonal(), diagonal.double(), rtol=1e-5, atol=1e-5)


def test_laplace_where_points_coincide():
    x = units(3, 4).float().requires_grad_()
    y = x.detach().clone().requires_grad_()
    k = Laplace(0.01)(x, y).diagonal()
    assert (k == 1).all()
    assert all((g == 0).all() for g in torch.autograd.grad(k.sum(), (x, y)))


@PROPER
def test_gram_of_near_points_is_semidefinite_in_single_precision(name: str, sigma: float):
    x = units(20, 16).float()
    x = torch.cat([x, torch.nn.functional.normalize(x + 1e-6)])
    k = KERNELS[name](sigma / 10)(x, x)
    assert torch.linalg.eigvalsh(k.double()).min() > -1e-5


def test_gradient_of_min_at_ties_and_zeros():
    # Both coordinates tie in the first pair: each side has half. Zeros and negatives have no gradient.
    x = torch.tensor([[0.6, 0.8], [-0.6, 0.0], [1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    k = Min()(x, y)
    torch.testing.assert_close(k, torch.tensor([[1.4], [0.0], [0.6]], dtype=torch.float64))
    gx, gy = torch.autograd.grad(k.sum(), (x, y))
    ours = [[0.5, 0.5], [0.0, 0.0], [0.0, 0.0]]
    torch.testing.assert_close(gx, torch.tensor(ours, dtype=torch.float64))
    # 0.5 of the tie, and all of it where x is the larger; nothing where x is 0 or below.
    torch.testing.assert_close(gy, torch.tensor([[1.5, 0.5]], dtype=torch.float64))
    broadcast = torch.minimum(x.relu()[:, None], y.relu()[None]).sum(2)
    expected = torch.autograd.grad(broadcast.sum(), (x, y))
    torch.testing.assert_close((gx, gy), expected)


def test_min_of_repeated_points_equals_autograd():
    views = [z.detach()[[0, 1, 0, 2]].requires_grad_() for z in random_views(1, 3)]
    x = views[0]
    weight = torch.arange(16, dtype=torch.float64).reshape(4, 4)
    fast = torch.autograd.grad((Min()(x, x) * weight).sum(), x)
    slow = torch.autograd.grad((torch.minimum(x.relu()[:, None], x.relu()[None]).sum(2) * weight).sum(), x)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "x", None], ids=str)
@pytest.mark.parametrize(("cls", "name"), [(RBF, "sigma"), (Laplace, "sigma"), (Tanh, "gamma")])
def test_bandwidths_must_be_positive(cls, name: str, value: object):
    with pytest.raises(ValueError, match=f"{name} must be a finite number above 0, got {value!r}"):
        cls(**{name: value})


@pytest.mark.parametrize("degree", [0, -1, 1.5, True, 101, "3"], ids=str)
def test_degree_must_be_a_whole_number(degree: object):
    with pytest.raises(ValueError, match=f"degree must be a whole number from 1 to 100, got {degree!r}"):
        Polynomial(degree=degree)


@pytest.mark.parametrize("offset", [-0.1, float("inf"), float("nan")], ids=str)
def test_offset_must_not_be_negative(offset: float):
    with pytest.raises(ValueError, match="offset must be 0 or a number from 1e-30 to 1e30, got"):
        Polynomial(offset=offset)
