import copy
import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from two_processes import end, float64, quiet, recipe

from counterpoint.objectives import MMCL, XCLR, NTXent
from counterpoint.train.cached import BatchNormWarning, cached_backward
from counterpoint.train.checkpoint import load_checkpoint
from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit

N, PART, VIEWS = 512, 64, 2


class Unit(nn.Module):
    """Dropout whose mask every sample has of its own, so that parts and the whole batch draw alike."""

    def forward(self, x):
        if not self.training:
            return x
        keep = torch.stack([torch.rand(x.shape[1]) for _ in x]) > 0.3
        return x * keep / 0.7


def tower(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), *between, nn.ReLU(), nn.Linear(32, 8))


def pictures(n=N):
    return torch.randn(VIEWS, n, 12, generator=torch.Generator().manual_seed(1))


def encode_with(model):
    return lambda part: tuple(model(part.flatten(0, 1)).chunk(VIEWS))


def parts_of(x, size=PART):
    return list(x.split(size, dim=1))


def relative(gradients, others):
    return max(
        float((a - b).norm() / b.norm().clamp_min(1e-12)) for a, b in zip(gradients, others, strict=True)
    )


def gradients(*modules):
    return [p.grad for module in modules for p in module.parameters()]


def one_graph(model, x, objective, size=PART):
    """All parts encoded with their graphs kept, and one backward pass through them."""
    pieces = [encode_with(model)(part) for part in parts_of(x, size)]
    loss = objective(*(torch.cat(view) for view in zip(*pieces, strict=True)))
    loss.backward()
    return loss.detach()


OBJECTIVES = {
    "ntxent": lambda: NTXent(tau=0.1),
    "sum": lambda: NTXent(tau=0.1) + 0.5 * MMCL(),
    "xclr": lambda: XCLR(tau=0.1),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_that_of_the_large_batch(name):
    """8 parts of 64 against 1 of 512, in float64 and float32."""
    objective, x = OBJECTIVES[name](), pictures()
    side = {"target": torch.eye(N)} if name == "xclr" else {}
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        if name == "sum" and dtype == torch.float64:
            bound = 1e-7  # MMCL solves in float32
        model = tower().to(dtype)
        large = copy.deepcopy(model)
        loss = cached_backward(
            encode_with(model), parts_of(x.to(dtype)), lambda *views: objective(*views, **side)
        )
        whole = objective(*encode_with(large)(x.to(dtype)), **side)
        whole.backward()
        assert loss == pytest.approx(float(whole.detach()), rel=1e-5)
        assert relative(gradients(model), gradients(large)) < bound


def test_dropout_draws_in_the_second_pass_what_it_drew_in_the_first():
    x = pictures()
    model = tower(nn.Dropout(0.3))
    other = copy.deepcopy(model)
    torch.manual_seed(5)
    loss = cached_backward(encode_with(model), parts_of(x), NTXent(tau=0.1))
    after = torch.get_rng_state()
    torch.manual_seed(5)
    assert loss == pytest.approx(float(one_graph(other, x, NTXent(tau=0.1))), rel=1e-6)
    assert relative(gradients(model), gradients(other)) < 1e-5
    assert torch.equal(after, torch.get_rng_state())


def test_with_dropout_it_is_the_large_batch_where_that_draws_alike():
    x = pictures(96)
    model = tower(Unit())
    large = copy.deepcopy(model)
    order = lambda part: tuple(model(part.transpose(0, 1).flatten(0, 1)).view(-1, VIEWS, 8).unbind(1))  # noqa: E731
    torch.manual_seed(5)
    cached_backward(order, parts_of(x, 12), NTXent(tau=0.1))
    torch.manual_seed(5)
    z = large(x.transpose(0, 1).flatten(0, 1)).view(-1, VIEWS, 8)
    NTXent(tau=0.1)(*z.unbind(1)).backward()
    assert relative(gradients(model), gradients(large)) < 1e-5


def test_a_learned_temperature_and_a_scaler_get_their_gradient():
    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_tau = nn.Parameter(torch.tensor(-1.0))

        def forward(self, a, b):
            return NTXent(tau=1.0)(a, b) * self.log_tau.exp()

    x, model = pictures(96), tower()
    plain, objective, scaled = copy.deepcopy(model), Learned(), Learned()
    one_graph(plain, x, objective)
    cached_backward(encode_with(model), parts_of(x), scaled, backward=lambda loss: (1024.0 * loss).backward())
    wanted = [1024.0 * g for g in gradients(plain, objective)]
    assert relative(gradients(model, scaled), wanted) < 1e-5


def test_under_autocast_the_weights_get_a_gradient():
    x, model = pictures(96), tower()
    plain = copy.deepcopy(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cached_backward(encode_with(model), parts_of(x), NTXent())
        one_graph(plain, x, NTXent())
    assert relative(gradients(model), gradients(plain)) < 0.02


def test_all_parts_but_the_last_are_encoded_without_synchronising():
    inside, seen = [False], []

    @contextmanager
    def no_sync():
        inside[0] = True
        yield
        inside[0] = False

    model = tower()

    def encode(part):
        seen.append((torch.is_grad_enabled(), inside[0]))
        return encode_with(model)(part)

    cached_backward(encode, parts_of(pictures(96), 32), NTXent(), no_sync=no_sync)
    assert seen == [(False, True)] * 3 + [(True, True)] * 2 + [(True, False)]


def test_a_gradient_is_added_to_what_is_there():
    model, x = tower(), pictures(96)
    cached_backward(encode_with(model), parts_of(x), NTXent())
    once = [g.clone() for g in gradients(model)]
    cached_backward(encode_with(model), parts_of(x), NTXent())
    assert relative(gradients(model), [2 * g for g in once]) < 1e-6


def test_batchnorm_is_warned_of_and_counts_each_part_once():
    model = tower(nn.BatchNorm1d(32))
    with pytest.warns(BatchNormWarning, match=r"1 of them, the first is 1\) normalises each part by itself"):
        cached_backward(encode_with(model), parts_of(pictures(96), 32), NTXent(), encoder=model)
    assert model[1].num_batches_tracked == 3
    frozen = model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached_backward(encode_with(frozen), parts_of(pictures(96)), NTXent(), encoder=frozen)
    assert model[1].num_batches_tracked == 3


@pytest.mark.parametrize("most", [1, 3, 6, 13, 100])
def test_a_run_in_parts_is_the_run_of_whole_batches(tmp_path, whole_run, most):
    """Batches of 13, which 3 and 6 do not divide; no BatchNorm, and double precision."""
    with float64():
        run = fit(recipe("ntxent", micro_batch=most), tmp_path, console=quiet())
    rows, others = read_metrics(run.metrics), read_metrics(whole_run.metrics)
    assert len(rows) == 4
    for row, other in zip(rows, others, strict=True):
        for key in row.keys() - {"images_per_s", "data_wait"}:
            assert row[key] == (None if other[key] is None else pytest.approx(other[key], rel=1e-5)), key
    state, other = (load_checkpoint(end(r)) for r in (run, whole_run))
    for name, weight in other["encoder"].items():
        torch.testing.assert_close(state["encoder"][name], weight, rtol=0, atol=1e-12)
    assert torch.equal(state["random_state"], other["random_state"])


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    with float64():
        return fit(recipe("ntxent"), tmp_path_factory.mktemp("whole"), console=quiet())


def test_no_parts_are_refused():
    with pytest.raises(ValueError, match="parts must be one or more"):
        cached_backward(lambda part: (part,), [], NTXent())


def test_a_loss_without_a_gradient_is_refused():
    model = tower()
    with pytest.raises(ValueError, match="the loss has no gradient"):
        cached_backward(encode_with(model), parts_of(pictures(96)), lambda *z: NTXent()(*z).detach())
    with torch.no_grad(), pytest.raises(ValueError, match="the loss has no gradient"):
        cached_backward(encode_with(model), parts_of(pictures(96)), NTXent())
