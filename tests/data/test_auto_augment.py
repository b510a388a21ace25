import pytest
import torch
from torchvision.transforms import v2

from counterpoint.data.auto_augment import auto_augment, draw_auto_augment, policy_table

POLICIES = {"imagenet": v2.AutoAugmentPolicy.IMAGENET, "cifar10": v2.AutoAugmentPolicy.CIFAR10}


def pictures(n, size=24):
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, 3, 5, 5, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return (smooth * 255).round().to(torch.uint8)


def torchvisions(monkeypatch, picture, row, policy):
    """torchvision's own transform of one picture, with the random numbers in `row` instead of its own."""
    transform = v2.AutoAugment(POLICIES[policy])
    sub_policy = transform._policies[int(row[0] * 25)]
    numbers = []
    for step, (name, share, _) in enumerate(sub_policy):
        numbers.append(row[1 + 2 * step])
        if row[1 + 2 * step] <= share and transform._AUGMENTATION_SPACE[name][1]:
            numbers.append(row[2 + 2 * step])
    left = iter(numbers)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randint", lambda high, size: torch.tensor(int(row[0] * high)))
        patch.setattr(torch, "rand", lambda size: torch.tensor(next(left)))
        out = transform(picture)
    assert next(left, None) is None
    return out


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_sub_policy_and_sign_is_torchvisions(monkeypatch, policy):
    chances = [
        (0.0, 0.23, 0.0, 0.83),
        (0.0, 0.83, 0.99, 0.23),
        (0.99, 0.13, 0.0, 0.13),
        (0.53, 0.73, 0.53, 0.73),
    ]
    draws = torch.tensor([[(k + 0.5) / 25, *chance] for k in range(25) for chance in chances])
    x = pictures(len(draws))
    before = x.clone()
    ours = auto_augment(x, draws, policy)
    assert torch.equal(x, before)
    for i, row in enumerate(draws.tolist()):
        assert torch.equal(ours[i], torchvisions(monkeypatch, x[i], row, policy)), (policy, row)


def test_operations_are_applied_as_often_as_the_table_says():
    draws = draw_auto_augment(40_000, torch.Generator().manual_seed(0))
    table = policy_table("cifar10", 32)
    drawn = (draws[:, 0] * 25).long()
    counts = torch.bincount(drawn, minlength=25) / len(draws)
    assert (counts - 1 / 25).abs().max() < 5 * (0.04 * 0.96 / len(draws)) ** 0.5
    for step in range(2):
        share = torch.tensor([sub_policy[step].share for sub_policy in table])[drawn]
        applied = (draws[:, 1 + 2 * step] <= share).float().mean()
        assert abs(applied - share.mean()) < 5 * 0.5 / len(draws) ** 0.5
    assert abs((draws[:, 2] < 0.5).float().mean() - 0.5) < 5 * 0.5 / len(draws) ** 0.5


def test_nothing_applied_changes_nothing():
    draws = torch.full((3, 5), 0.999)
    x = pictures(3)
    # the last imagenet sub-policy is (Equalize 0.8, Equalize 0.6)
    assert torch.equal(auto_augment(x, draws, "imagenet"), x)


def test_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="must be one of imagenet, cifar10, got 'svhn'"):
        policy_table("svhn", 32)
