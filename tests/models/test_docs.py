"""The examples of the models page run, one after the other, and give what their comments say."""

import re
from pathlib import Path

import torch

from counterpoint.models.backbones import bare_backbone

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def test_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert (names["h"].shape, names["z"].shape) == ((8, 64), (8, 128))
    assert names["encoder"].width == 64
    assert round(names["peak"], 9) == 2.4
    assert isinstance(names["optimizer"], torch.optim.Optimizer)


def test_parameter_counts_of_the_table() -> None:
    for name, multiplier in (("conv4", 1), ("conv4", 4), ("resnet8", 1), ("resnet56", 1)):
        backbone = bare_backbone(name, width_multiplier=multiplier).module
        count = sum(p.numel() for p in backbone.parameters())
        assert f"{count:,}".replace(",", " ") in PAGE, (name, count)
