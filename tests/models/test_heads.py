"""Heads: the layers in their order, what has a bias, and what is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterpoint.models.heads import ScaleNorm, mlp_head


def kinds(head: nn.Module) -> list[str]:
    return [type(layer).__name__ for layer in head]


def test_two_layers_as_in_simclr() -> None:
    head = mlp_head(64, (256, 128))
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert head.linear1.bias is None
    assert head.linear2.bias is not None
    assert sum(p.numel() for p in head.parameters()) == 64 * 256 + 2 * 256 + 256 * 128 + 128
    assert head(torch.randn(4, 64)).shape == (4, 128)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((5,), ["Linear"]),
        ((5, 4), ["Linear", "BatchNorm1d", "ReLU", "Linear"]),
        ((6, 5, 4), ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear"]),
    ],
)
def test_one_to_three_layers(sizes: tuple[int, ...], expected: list[str]) -> None:
    head = mlp_head(8, sizes)
    assert kinds(head) == expected
    assert head(torch.randn(3, 8)).shape == (3, sizes[-1])


def test_without_norm_the_biases_come_back() -> None:
    head = mlp_head(8, (6, 4), norm=False)
    assert kinds(head) == ["Linear", "ReLU", "Linear"]
    assert head.linear1.bias is not None


def test_leaky_relu_for_qare() -> None:
    assert kinds(mlp_head(64, (256, 64), activation="leaky_relu"))[2] == "LeakyReLU"


def test_final_norm_has_a_scale_and_no_bias() -> None:
    head = mlp_head(8, (6, 4), final_norm=True)
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "ScaleNorm"]
    assert [name for name, _ in head.named_parameters() if name.endswith("bias")] == ["norm1.bias"]
    z = head(torch.randn(16, 8))
    assert_close(z.mean(0), torch.zeros(4), atol=1e-6, rtol=0)


def test_scale_norm_equals_batch_norm_with_a_zero_bias() -> None:
    torch.manual_seed(0)
    norm, plain = ScaleNorm(5), nn.BatchNorm1d(5)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(5))
        plain.weight.copy_(norm.weight)
    norm = copy.deepcopy(norm)
    for mode in (True, False):
        x = torch.randn(7, 5)
        ours, theirs = norm.train(mode)(x), plain.train(mode)(x)
        assert_close(ours, theirs)
        ours.square().sum().backward()
        theirs.square().sum().backward()
        assert_close(norm.weight.grad, plain.weight.grad)
    norm.reset_parameters()
    assert torch.equal(norm.weight, torch.ones(5))
    assert torch.equal(norm.running_var, torch.ones(5))


@pytest.mark.parametrize("sizes", [(), None])
def test_no_head_is_the_identity(sizes: tuple[int, ...] | None) -> None:
    x = torch.randn(3, 8)
    assert torch.equal(mlp_head(8, sizes)(x), x)


def test_names_in_the_state_dict_stay() -> None:
    assert list(mlp_head(8, (6, 4)).state_dict()) == [
        "linear1.weight",
        "norm1.weight",
        "norm1.bias",
        "norm1.running_mean",
        "norm1.running_var",
        "norm1.num_batches_tracked",
        "linear2.weight",
        "linear2.bias",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": (8, 8, 8, 8)}, r"head=\(8, 8, 8, 8\) has 4 linear layers; 0 to 3"),
        ({"sizes": (8, 0)}, r"head=\(8, 0\): every size must be >= 1"),
        ({"activation": "gelu"}, "activation 'gelu' is not known; allowed: relu, leaky_relu"),
        ({"sizes": (), "final_norm": True}, "takes no final_norm"),
    ],
)
def test_refusals(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mlp_head(8, **arguments)
