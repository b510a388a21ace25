"""Every objective equals its slow twin, in value and gradient."""

import pytest
import torch
from slow_objectives import TWINS, Twin, random_views
from torch import Tensor

EACH = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
SIZES = [(twin, v, n) for twin in TWINS for v in twin.views for n in (2, 3, 5)]


def gradients(loss: Tensor, views: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, views))


def takes_the_best(twin: Twin) -> bool:
    """Rounding decides between two equal best ones, so their gradients are compared elsewhere."""
    return any(word in twin.name for word in ("triplet", "argmax", "assignment-hard", "assignment-one"))


def assert_equal_to_slow(
    twin: Twin, views: list[Tensor], side: dict[str, Tensor], compare_gradients: bool = True
):
    options = dict(twin.options)
    fast, slow = twin.fast(*views, **side, **options), twin.slow(*views, **side, **options)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    fast_gradients = gradients(fast, views)
    if compare_gradients:
        torch.testing.assert_close(fast_gradients, gradients(slow, views), rtol=1e-8, atol=1e-10)
    assert all(g.isfinite().all() for g in fast_gradients)


@pytest.mark.parametrize(("twin", "v", "n"), SIZES, ids=lambda x: getattr(x, "name", str(x)))
def test_equals_slow(twin: Twin, v: int, n: int):
    assert_equal_to_slow(twin, random_views(v, n, seed=n), twin.arguments(n, seed=v))


@EACH
def test_one_sample(twin: Twin):
    v = max(2, twin.views[0])
    side = twin.side(1, torch.Generator().manual_seed(0))
    assert_equal_to_slow(twin, random_views(v, 1), side)


@EACH
def test_repeated_rows(twin: Twin):
    views = [z.detach()[[0, 1, 0, 2, 1]].requires_grad_() for z in random_views(2, 3)]
    assert_equal_to_slow(twin, views, twin.arguments(5, seed=1), compare_gradients=not takes_the_best(twin))


@EACH
def test_collapsed_batch(twin: Twin):
    row = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
    views = [row.repeat(5, 1).requires_grad_() for _ in range(2)]
    assert_equal_to_slow(twin, views, twin.arguments(5, seed=2), compare_gradients=not takes_the_best(twin))


@EACH
def test_zero_vector(twin: Twin):
    views = [z.detach().clone() for z in random_views(2, 5)]
    views[0][1] = 0
    views = [z.requires_grad_() for z in views]
    side, options = twin.arguments(5, seed=3), dict(twin.options)
    fast = twin.fast(*views, **side, **options)
    torch.testing.assert_close(fast, twin.slow(*views, **side, **options), rtol=1e-10, atol=1e-12)
    g0, g1 = gradients(fast, views)
    assert g0.isfinite().all()
    assert g1.isfinite().all()
    assert (g0[1] == 0).all()


@EACH
def test_all_zero_vectors(twin: Twin):
    views = [torch.zeros(4, 3, requires_grad=True) for _ in range(2)]
    loss = twin.fast(*views, **twin.arguments(4, seed=3), **dict(twin.options))
    assert loss.isfinite()
    assert all((g == 0).all() for g in gradients(loss, views))


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_low_precision_inputs(twin: Twin, dtype: torch.dtype):
    views = random_views(2, 6, seed=4, dtype=dtype)
    exact = [z.detach().double().requires_grad_() for z in views]
    side, options = twin.arguments(6, seed=4), dict(twin.options)
    fast, slow = twin.fast(*views, **side, **options), twin.slow(*exact, **side, **options)
    assert fast.dtype == torch.float32
    torch.testing.assert_close(fast.double(), slow, rtol=1e-5, atol=1e-6)
    tolerance = 1e-4 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    for g, expected, z in zip(gradients(fast, views), gradients(slow, exact), views, strict=True):
        assert g.dtype == z.dtype
        torch.testing.assert_close(
            g.double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
        )


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_changes_nothing(twin: Twin, dtype: torch.dtype):
    views = random_views(2, 6, seed=5, dtype=torch.float32)
    side, options = twin.arguments(6, seed=5), dict(twin.options)
    plain = twin.fast(*views, **side, **options)
    with torch.autocast("cpu", dtype=dtype):
        under_autocast = twin.fast(*views, **side, **options)
    assert under_autocast.dtype == torch.float32
    assert torch.equal(plain, under_autocast)
    assert all(map(torch.equal, gradients(plain, views), gradients(under_autocast, views)))


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_nor_does_autocast_round_a_backward_pass_inside_it(twin: Twin, dtype: torch.dtype):
    views = random_views(2, 6, seed=5, dtype=torch.float32)
    side, options = twin.arguments(6, seed=5), dict(twin.options)
    plain = gradients(twin.fast(*views, **side, **options), views)
    with torch.autocast("cpu", dtype=dtype):
        inside = gradients(twin.fast(*views, **side, **options), views)
    assert all(map(torch.equal, plain, inside))


@EACH
def test_gradcheck(twin: Twin):
    side, options = twin.arguments(4, seed=6), dict(twin.options)
    assert torch.autograd.gradcheck(lambda *z: twin.fast(*z, **side, **options), random_views(2, 4, seed=6))


@EACH
def test_module_equals_function(twin: Twin):
    views, side, options = random_views(2, 5), twin.arguments(5, seed=7), dict(twin.options)
    module, expected = twin.module(**options), twin.fast(*views, **side, **options)
    loss, log = module.with_log(*views, **side)
    assert torch.equal(module(*views, **side), expected)
    assert torch.equal(loss, expected)
    assert torch.equal(log["loss"], expected.detach())
    assert all(value.ndim == 0 and not value.requires_grad for value in log.values())


@EACH
def test_defaults_of_module_and_function_agree(twin: Twin):
    views, side = random_views(2, 5), twin.arguments(5, seed=8)
    assert torch.equal(twin.module()(*views, **side), twin.fast(*views, **side))


@EACH
def test_lengths_of_rows_do_not_matter(twin: Twin):
    views, side, options = random_views(2, 5), twin.arguments(5, seed=9), dict(twin.options)
    scaled = [z * torch.linspace(0.01, 100, 5, dtype=z.dtype)[:, None] for z in views]
    torch.testing.assert_close(twin.fast(*scaled, **side, **options), twin.fast(*views, **side, **options))
