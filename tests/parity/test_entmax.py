"""The same numbers as the entmax package, whose sparse losses sort."""

import pytest
import torch

from counterpoint.objectives import entmax15, fenchel_young, sparsemax

peer = pytest.importorskip("entmax", reason="entmax comes with counterpoint[bench]")
LOSSES = {"sparsemax": peer.SparsemaxLoss, "entmax15": peer.Entmax15Loss}
MAPS = {"sparsemax": (sparsemax, peer.sparsemax), "entmax15": (entmax15, peer.entmax15)}


def scores(scale: float, c: int = 700) -> torch.Tensor:
    generator = torch.Generator().manual_seed(int(10 * scale))
    return (torch.randn(40, c, generator=generator, dtype=torch.float64) * scale).requires_grad_()


@pytest.mark.parametrize("map", LOSSES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_loss_and_gradient(map: str, scale: float):
    x, y = scores(scale), torch.arange(40)
    ours, theirs = fenchel_young(x, y, map), LOSSES[map](k=None, reduction="none")(x, y)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(
        torch.autograd.grad(ours.sum(), x), torch.autograd.grad(theirs.sum(), x), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_probabilities_and_their_gradient(map: str, scale: float):
    x = scores(scale)
    weight = scores(1.0).detach()
    ours, theirs = MAPS[map][0](x), MAPS[map][1](x, dim=1)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad((ours * weight).sum(), x), torch.autograd.grad((theirs * weight).sum(), x),
        rtol=1e-8, atol=1e-10,
    )  # fmt: skip
