"""Optimisers against slow twins and peers, groups by hand, schedules at their ends."""

import copy
import io
import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from counterpoint.models.encoder import build_encoder
from counterpoint.train.optim import LARS, build_optimizer, learning_rate, rate_factors, scaled_lr

STEPS = 10


class Net(nn.Module):
    """Float64: a convolution, a norm, a linear layer, and one weight that starts at zero.

    The convolution has no bias: before a norm its gradient is rounding alone, and no two sums agree on it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 5)
        self.gate = nn.Parameter(torch.zeros(5, 5))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(self.norm(self.conv(x)).relu().mean((2, 3)))
        return y + y @ self.gate


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
    """One update per rate, on fresh data each time, the same for every model."""
    data = torch.Generator().manual_seed(5)
    for lr in rates:
        for group in optimizer.param_groups:
            group["lr"] = lr
        x = torch.randn(6, 3, 8, 8, dtype=torch.float64, generator=data)
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


class LoopLARS(torch.optim.Optimizer):
    """The formula of LARS one number of one tensor at a time."""

    def __init__(
        self, params: list[dict[str, object]], momentum: float, trust: float, nesterov: bool
    ) -> None:
        super().__init__(params, {"lr": 0.0})
        self.momentum, self.trust, self.nesterov = momentum, trust, nesterov

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                w, g = p.flatten().tolist(), p.grad.flatten().tolist()
                v = self.state[p].setdefault("v", [0.0] * len(w))
                decay, local = group["weight_decay"], 1.0
                if group["adapt"]:
                    size = math.sqrt(sum(a * a for a in w))
                    below = math.sqrt(sum(b * b for b in g)) + decay * size
                    if size > 0 and below > 0:
                        local = self.trust * size / below
                for i in range(len(w)):
                    move = local * (g[i] + decay * w[i])
                    v[i] = self.momentum * v[i] + move
                    w[i] -= group["lr"] * (move + self.momentum * v[i] if self.nesterov else v[i])
                p.copy_(torch.tensor(w, dtype=p.dtype).view_as(p))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_lars_equals_a_slow_loop(weight_decay: float, nesterov: bool) -> None:
    torch.manual_seed(0)
    model = Net()
    plain = copy.deepcopy(model)
    optimizer = build_optimizer(
        model, "lars", lr=0.0, weight_decay=weight_decay, momentum=0.9, nesterov=nesterov, trust=0.3
    )
    groups = [
        {
            "params": [p for p in plain.parameters() if p.ndim > 1],
            "weight_decay": weight_decay,
            "adapt": True,
        },
        {"params": [p for p in plain.parameters() if p.ndim <= 1], "weight_decay": 0.0, "adapt": False},
    ]
    start = copy.deepcopy(model)
    rates = [0.05 + 0.01 * step for step in range(STEPS)]
    train(model, optimizer, rates)
    train(plain, LoopLARS(groups, 0.9, 0.3, nesterov), rates)
    for (name, p), q, before in zip(
        model.named_parameters(), plain.parameters(), start.parameters(), strict=True
    ):
        assert_close(p, q, rtol=1e-12, atol=1e-14, msg=lambda text, name=name: f"{name}: {text}")
        assert (p - before).abs().max() > 1e-4, name


def test_lars_equals_the_published_formula_while_the_rate_is_constant() -> None:
    """You et al. keep the global rate inside the momentum: v <- m v + lr local (g + decay w), w <- w - v."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 3, dtype=torch.float64))
    other, v = weight.detach().clone(), torch.zeros(4, 3, dtype=torch.float64)
    target = torch.randn(4, 3, dtype=torch.float64)
    optimizer = LARS([weight], lr=3.0, momentum=0.9, weight_decay=0.01, trust=0.001)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (weight - target).pow(4).sum().backward()
        optimizer.step()
        g = 4 * (other - target) ** 3
        local = 0.001 * other.norm() / (g.norm() + 0.01 * other.norm())
        v = 0.9 * v + 3.0 * local * (g + 0.01 * other)
        other = other - v
    assert_close(weight.detach(), other, rtol=1e-12, atol=0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_equals_lightly(nesterov: bool) -> None:
    """Lightly leaves the plain group unadapted by its zero weight decay, and adds a small eps, here 0."""
    lars = pytest.importorskip("lightly.utils.lars").LARS
    torch.manual_seed(0)
    model = Net()
    plain = copy.deepcopy(model)
    groups = [
        {"params": [p for p in plain.parameters() if p.ndim > 1], "weight_decay": 0.05},
        {"params": [p for p in plain.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    theirs = lars(groups, lr=1.0, momentum=0.9, nesterov=nesterov, trust_coefficient=0.3, eps=0.0)
    ours = build_optimizer(model, "lars", lr=1.0, weight_decay=0.05, nesterov=nesterov, trust=0.3)
    rates = [0.05 + 0.01 * step for step in range(STEPS)]
    train(model, ours, rates)
    train(plain, theirs, rates)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert_close(p, q, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_without_adaptation_is_sgd(nesterov: bool) -> None:
    torch.manual_seed(0)
    model = Net()
    plain = copy.deepcopy(model)
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "nesterov": nesterov}
    train(model, LARS(model.parameters(), adapt=False, **settings), [0.1] * STEPS)
    train(plain, torch.optim.SGD(plain.parameters(), **settings), [0.1] * STEPS)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert_close(p, q, rtol=1e-12, atol=1e-14)


def test_lars_leaves_gradients_and_absent_gradients_alone() -> None:
    first, second = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    first.grad = torch.full((2, 2), 3.0)
    optimizer = LARS([first, second], lr=1.0, weight_decay=0.1)
    optimizer.step()
    assert torch.equal(first.grad, torch.full((2, 2), 3.0))
    assert torch.equal(second.detach(), torch.ones(2, 2))
    assert second not in optimizer.state
    LARS([second], lr=1.0).step()


def test_lars_of_zero_weights_and_of_zero_gradients_stays_finite() -> None:
    zero, still = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    zero.grad, still.grad = torch.ones(2, 2), torch.zeros(2, 2)
    LARS([zero, still], lr=0.5).step()
    assert torch.equal(zero.detach(), torch.full((2, 2), -0.5))
    assert torch.equal(still.detach(), torch.ones(2, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_lars_in_each_precision(dtype: torch.dtype) -> None:
    # 300 squared is above the largest float16.
    weight = nn.Parameter(torch.tensor([[300.0, 400.0]], dtype=dtype))
    weight.grad = torch.tensor([[500.0, 0.0]], dtype=dtype)
    LARS([weight], lr=16.0, trust=0.5).step()
    expected = torch.tensor([[300.0 - 16 * 0.5 * 500, 400.0]], dtype=dtype)
    assert_close(weight.detach(), expected)


def test_lars_resumes_bit_equal_from_its_state() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = build_optimizer(model, "lars", lr=1.0, weight_decay=0.05)
    train(model, optimizer, [1.0] * 3)
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    train(model, optimizer, [1.0] * 3)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    other = Net()
    other.load_state_dict(saved["model"])
    resumed = build_optimizer(other, "lars", lr=1.0, weight_decay=0.05)
    resumed.load_state_dict(saved["optimizer"])
    train(other, resumed, [1.0] * 3)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_lars_takes_a_closure() -> None:
    weight = nn.Parameter(torch.ones(2, 2))

    def closure() -> Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert LARS([weight], lr=1.0).step(closure) == 4.0
    assert weight[0, 0] < 1


def test_lars_refuses_sparse_gradients() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="dense gradients only"):
        LARS(table.parameters(), lr=1.0).step()


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "lars"])
def test_norms_and_biases_are_left_out_of_decay_and_adaptation(name: str) -> None:
    encoder = build_encoder("conv4", head=(8, 4), seed=0)
    optimizer = build_optimizer(encoder, name, lr=0.1, weight_decay=1e-4)
    names = {id(p): key for key, p in encoder.named_parameters()}
    decayed, bare = ([names[id(p)] for p in group["params"]] for group in optimizer.param_groups)
    weights = [f"backbone.blocks.{i}.conv.weight" for i in range(4)] + [
        "head.linear1.weight",
        "head.linear2.weight",
    ]
    assert decayed == weights
    assert sorted(decayed + bare) == sorted(names.values())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [1e-4, 0.0]
    if name == "lars":
        assert [group["adapt"] for group in optimizer.param_groups] == [True, False]
        assert all(group["trust"] == 0.001 for group in optimizer.param_groups)


def test_decay_moves_only_the_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    start = copy.deepcopy(model)
    optimizer = build_optimizer(model, "sgd", lr=0.5, weight_decay=0.1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert_close(model[0].weight, start[0].weight * 0.95)
    for p, q in ((model[0].bias, start[0].bias), (model[1].weight, start[1].weight)):
        assert torch.equal(p, q)


def test_frozen_parameters_are_left_out() -> None:
    encoder = build_encoder("conv4", seed=0)
    encoder.backbone.requires_grad_(False)
    optimizer = build_optimizer(encoder, "lars", lr=1.0, weight_decay=0.1)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in encoder.head.parameters()}


def test_tied_parameters_are_taken_once() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    groups = build_optimizer(nn.ModuleList([first, second]), lr=0.1).param_groups
    assert [len(group["params"]) for group in groups] == [1, 2]


def test_rates_fall_from_the_head_to_the_first_block() -> None:
    encoder = build_encoder("conv4", head=(8, 4), seed=0)
    factors = rate_factors(encoder, layer_decay=0.5, head_factor=3.0)
    model = nn.ModuleDict({"encoder": encoder, "other": nn.Linear(2, 2)})
    optimizer = build_optimizer(model, "lars", lr=0.1, weight_decay=1e-4, factors=factors)
    names = {id(p): key for key, p in model.named_parameters()}
    found = {
        names[id(p)]: (group["lr_factor"], group["lr"], group["weight_decay"], group["adapt"])
        for group in optimizer.param_groups
        for p in group["params"]
    }
    assert set(found) == set(names.values())
    assert found["encoder.backbone.blocks.0.conv.weight"] == (0.5**4, 0.1 * 0.5**4, 1e-4, True)
    assert found["encoder.backbone.blocks.3.norm.bias"] == (0.5, 0.1 * 0.5, 0.0, False)
    assert found["encoder.head.linear1.weight"] == (3.0, 0.1 * 3.0, 1e-4, True)
    assert found["other.weight"][0] == 1.0


def test_a_factor_is_a_rate_of_its_own() -> None:
    ours, theirs = build_encoder("conv4", head=(4,), seed=0), build_encoder("conv4", head=(4,), seed=0)
    optimizer = build_optimizer(ours, "sgd", lr=0.2, factors=rate_factors(ours, layer_decay=0.5))
    before = copy.deepcopy(theirs)
    for encoder in (ours, theirs):
        encoder(torch.linspace(-1, 1, 4 * 3 * 64).reshape(4, 3, 8, 8))[1].square().sum().backward()
    optimizer.step()
    for depth in range(4):
        start, moved = before.backbone.blocks[depth].conv.weight, ours.backbone.blocks[depth].conv.weight
        assert_close(start - moved, 0.2 * 0.5 ** (4 - depth) * theirs.backbone.blocks[depth].conv.weight.grad)


def test_without_factors_nothing_changes() -> None:
    encoder = build_encoder("conv4", head=(8, 4), seed=0)
    assert rate_factors(encoder) is None
    assert rate_factors(encoder, layer_decay=1.0, head_factor=1.0) is None
    groups = build_optimizer(encoder, "sgd", lr=0.1, factors=None).param_groups
    assert len(groups) == 2
    assert all("lr_factor" not in group for group in groups)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer_decay": 0.0}, r"layer_decay must lie in \(0, 1\], got 0.0"),
        ({"layer_decay": 1.5}, r"layer_decay must lie in \(0, 1\], got 1.5"),
        ({"head_factor": 0.0}, "head_factor must be a finite number > 0, got 0.0"),
    ],
)
def test_rate_factor_refusals(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rate_factors(build_encoder("conv4"), **options)


def test_settings_reach_the_optimisers_of_torch() -> None:
    model = nn.Linear(2, 2)
    sgd = build_optimizer(model, "sgd", lr=0.1, momentum=0.8, nesterov=True)
    assert isinstance(sgd, torch.optim.SGD)
    assert (sgd.param_groups[0]["momentum"], sgd.param_groups[1]["nesterov"]) == (0.8, True)
    adam = build_optimizer(model, "adam", lr=0.1, betas=(0.8, 0.9))
    assert type(adam) is torch.optim.Adam
    assert adam.param_groups[0]["betas"] == (0.8, 0.9)
    assert type(build_optimizer(model, lr=0.1)) is torch.optim.AdamW


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "rmsprop"}, "'rmsprop' is not known; allowed: adam, adamw, sgd, lars"),
        ({"lr": -0.1}, "lr must be a finite number >= 0, got -0.1"),
        ({"lr": math.nan}, "lr must be a finite number >= 0, got nan"),
        ({"weight_decay": -1.0}, "weight_decay must be .* got -1.0"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1.0"),
        ({"name": "lars", "momentum": 0.0, "nesterov": True}, "nesterov needs a momentum > 0"),
        ({"name": "adam", "nesterov": True}, "nesterov is for sgd and lars, not adam"),
        ({"betas": (0.9, 1.0)}, r"betas must lie in \[0, 1\), got \(0.9, 1.0\)"),
        ({"name": "lars", "trust": 0.0}, "trust must be > 0, got 0.0"),
    ],
)
def test_build_optimizer_refusals(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_optimizer(nn.Linear(2, 2), **{"lr": 0.1, **options})


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no trainable parameters"):
        build_optimizer(nn.Linear(2, 2).requires_grad_(False), lr=0.1)


def test_scaled_lr() -> None:
    assert scaled_lr(0.3, 4096) == 0.3
    assert scaled_lr(0.3, 4096, "linear") == 0.3 * 16
    assert scaled_lr(0.1, 1024, "sqrt") == pytest.approx(3.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.1, 256, "cubic"), "'cubic' is not known; allowed: none, sqrt, linear"),
        ((0.1, 0, "none"), "batch_size must be >= 1, got 0"),
        ((-0.1, 256, "none"), "base_lr must be .* got -0.1"),
    ],
)
def test_scaled_lr_refusals(arguments: tuple[float, int, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scaled_lr(*arguments)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize(("peak", "final"), [(0.3, 0.1), (0.01, 0.001), (2.4, 0.0), (1e-3, 7e-7)])
def test_schedule_is_exact_at_its_ends_and_middle(schedule: str, peak: float, final: float) -> None:
    def rate(step: int) -> float:
        return learning_rate(step, 110, 10, peak, schedule, final)

    assert rate(0) == 0.0
    assert rate(5) == peak / 2
    assert rate(10) == peak
    assert rate(60) == pytest.approx((peak + final) / 2, rel=1e-15)
    assert rate(110) == final
    assert all(rate(step) < rate(step + 1) for step in range(10))
    assert all(rate(step) > rate(step + 1) for step in range(10, 110))
    assert learning_rate(0, 110, 0, peak, schedule, final) == peak


def test_cosine_at_a_third() -> None:
    assert learning_rate(1, 3, 0, 1.0) == pytest.approx(0.75)
    assert learning_rate(2, 3, 0, 1.0, final=0.5) == pytest.approx(0.5 + 0.5 * 0.25)


def test_cosine_equals_torch() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.7)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=37, eta_min=0.01)
    for step in range(37):
        assert learning_rate(step, 37, 0, 0.7, final=0.01) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()


def test_constant_after_warm_up() -> None:
    assert [learning_rate(step, 6, 2, 0.4, "constant") for step in range(7)] == [0.0, 0.2, *[0.4] * 5]


def test_a_run_that_is_all_warm_up() -> None:
    assert [learning_rate(step, 4, 4, 1.0) for step in range(5)] == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": -1}, r"step must lie in \[0, total_steps\] = \[0, 10\], got -1"),
        ({"step": 11}, r"step must lie in .* got 11"),
        ({"warmup_steps": 11}, r"warmup_steps must lie in \[0, total_steps\] = \[0, 10\], got 11"),
        ({"warmup_steps": -1}, r"warmup_steps must lie in .* got -1"),
        ({"schedule": "step"}, "'step' is not known; allowed: cosine, linear, constant"),
        ({"peak": math.inf}, "peak must be a finite number >= 0, got inf"),
        ({"final": -1.0}, "final must be a finite number >= 0, got -1.0"),
        ({"schedule": "constant", "final": 0.1}, "final=0.1 has no meaning with schedule='constant'"),
    ],
)
def test_learning_rate_refusals(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learning_rate(**{"step": 0, "total_steps": 10, "warmup_steps": 0, "peak": 1.0, **arguments})
