"""Depths of blocks against those counted by hand."""

import pytest
import torch
from torch import nn

from counterpoint.models.backbones import bare_backbone
from counterpoint.models.depth import block_depths


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("conv4", {"blocks.0.conv.weight": 0, "blocks.0.norm.bias": 0, "blocks.3.conv.weight": 3}),
        ("resnet8", {"stem.0.conv.weight": 0, "stages.0.0.first.conv.weight": 1,
                     "stages.2.0.shortcut.conv.weight": 3}),
        ("resnet18", {"conv1.weight": 0, "bn1.weight": 0, "layer1.0.conv2.weight": 1, "layer1.1.bn1.bias": 2,
                      "layer4.0.downsample.0.weight": 7, "layer4.1.conv2.weight": 8}),
        ("vit_b_32", {"class_token": 0, "conv_proj.weight": 0, "encoder.pos_embedding": 0,
                      "encoder.layers.encoder_layer_0.mlp.0.weight": 1,
                      "encoder.layers.encoder_layer_11.ln_1.weight": 12, "encoder.ln.weight": 12}),
        ("timm:vit_tiny_patch16_224", {"cls_token": 0, "patch_embed.proj.weight": 0,
                                       "blocks.0.attn.qkv.weight": 1, "blocks.11.mlp.fc2.bias": 12}),
    ],
)  # fmt: skip
def test_blocks_in_their_order(name: str, wanted: dict[str, int]) -> None:
    if name.startswith("timm"):
        pytest.importorskip("timm")
    backbone = bare_backbone(name).module
    depths = block_depths(backbone)
    assert {key: depths[key] for key in wanted} == wanted
    assert list(depths) == [key for key, _ in backbone.named_parameters()] or name.startswith("timm")
    assert set(depths) == {key for key, _ in backbone.named_parameters()}
    assert set(depths.values()) == set(range(max(wanted.values()) + 1))


def test_a_backbone_of_the_user_without_containers() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.norm = nn.BatchNorm2d(3)
            self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)

    depths = block_depths(Two())
    assert depths["scale"] == depths["norm.weight"] == 0
    assert (depths["a.weight"], depths["b.bias"]) == (1, 2)
