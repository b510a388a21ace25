"""The encoder: features before the head, the same start for the same seed, weights from files."""

from pathlib import Path

import pytest
import torch
import torchvision.models as zoo
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from counterpoint.models.encoder import Encoder, build_encoder
from counterpoint.train.checkpoint import save_checkpoint


def same(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return list(x) == list(y) and all(torch.equal(x[key], y[key]) for key in x)


@pytest.mark.parametrize("size", [16, 32, 48, 64])
@pytest.mark.parametrize("backbone", ["conv4", "resnet8", "resnet20"])
def test_shapes_at_several_sizes(backbone: str, size: int) -> None:
    encoder = build_encoder(backbone, head=(32, 16), seed=0)
    h, z = encoder(torch.randn(3, 3, size, size))
    assert (h.shape, z.shape) == ((3, 64), (3, 16))
    assert encoder.width == 64


def test_features_are_taken_before_the_head() -> None:
    encoder = build_encoder("conv4", seed=0).eval()
    x = torch.randn(3, 3, 32, 32)
    h, z = encoder(x)
    assert_close(h, encoder.backbone(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(z, encoder.head(h))
    assert z.shape == (3, 128)


@pytest.mark.parametrize("backbone", ["conv4", "resnet8", "resnet18", "convnext_tiny", "vit_b_32"])
def test_the_layout_of_the_pictures_changes_speed_and_nothing_else(backbone: str) -> None:
    encoder = build_encoder(backbone, head=(8,), seed=0).double().eval()  # double: no rounding to speak of
    x = torch.randn(3, 3, *(encoder.size or (40, 40)), dtype=torch.float64)
    seen = []
    encoder.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    found, want = [], []
    for store, layout in ((found, True), (want, False)):
        encoder.channels_last = layout
        h, z = encoder(x)
        encoder.zero_grad()
        (h.sin().sum() + z.square().sum()).backward()
        store += [h, z, *(p.grad for p in encoder.parameters())]
    assert [t.is_contiguous(memory_format=torch.channels_last) for t in seen] == [True, False]
    for a, b in zip(found, want, strict=True):
        assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_backbone_of_ones_own_gets_the_pictures_as_they_are() -> None:
    class Viewing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(len(x), -1)  # an error with the channels last

    assert Encoder(Viewing(), width=48)(torch.zeros(2, 3, 4, 4))[0].shape == (2, 48)


@pytest.mark.parametrize("head", [(), None])
def test_without_a_head_both_are_the_features(head: tuple[int, ...] | None) -> None:
    h, z = build_encoder("conv4", head=head, seed=0)(torch.randn(2, 3, 32, 32))
    assert z is h


def test_width_multiplier() -> None:
    encoder = build_encoder("conv4", width_multiplier=4, seed=0)
    assert encoder.width == 256
    assert encoder(torch.randn(2, 3, 16, 16))[0].shape == (2, 256)


def test_extra_linear_reaches_the_backbone() -> None:
    assert isinstance(build_encoder("resnet32", extra_linear=True).backbone.linear, nn.Linear)


def test_head_options_reach_the_head() -> None:
    encoder = build_encoder(
        "conv4", head=(8, 4), head_norm=False, head_final_norm=True, head_activation="leaky_relu"
    )
    assert [type(layer).__name__ for layer in encoder.head] == ["Linear", "LeakyReLU", "Linear", "ScaleNorm"]


@pytest.mark.parametrize("backbone", ["conv4", "resnet8", "resnet18", "timm:test_resnet"])
def test_the_seed_decides_the_weights_and_leaves_the_random_state_alone(backbone: str) -> None:
    if backbone.startswith("timm"):
        pytest.importorskip("timm")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_encoder(backbone, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = build_encoder(backbone, seed=7)
    other = build_encoder(backbone, seed=8)
    assert same(first, again)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_the_backbone_starts_alike_whatever_the_head() -> None:
    assert same(build_encoder(head=(4,), seed=3).backbone, build_encoder(head=(256, 128), seed=3).backbone)


def test_without_a_seed_the_global_random_state_decides() -> None:
    torch.manual_seed(0)
    first = build_encoder()
    second = build_encoder()
    torch.manual_seed(0)
    assert same(first, build_encoder())
    assert not same(first, second)


def test_frozen_backbone_gets_no_gradient_and_the_head_still_learns() -> None:
    encoder = build_encoder("conv4", seed=0)
    encoder.backbone.requires_grad_(False)
    encoder(torch.randn(4, 3, 32, 32))[1].square().sum().backward()
    assert all(p.grad is None for p in encoder.backbone.parameters())
    assert all(p.grad is not None for p in encoder.head.parameters())


def test_eval_mode_leaves_every_byte_alone() -> None:
    encoder = build_encoder("conv4", seed=0).eval()
    encoder(torch.randn(4, 3, 32, 32))
    assert same(encoder, build_encoder("conv4", seed=0))


def test_state_dict_names_of_conv4_stay() -> None:
    keys = list(build_encoder("conv4", head=(8, 4)).state_dict())
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    expected = []
    for block in range(4):
        expected += [f"backbone.blocks.{block}.conv.weight"]
        expected += [f"backbone.blocks.{block}.norm.{name}" for name in norm]
    expected += ["head.linear1.weight", *(f"head.norm1.{name}" for name in norm)]
    assert keys == [*expected, "head.linear2.weight", "head.linear2.bias"]


def test_a_backbone_of_the_user() -> None:
    encoder = Encoder(nn.Flatten(), nn.Linear(12, 2), width=12)
    h, z = encoder(torch.randn(5, 3, 2, 2))
    assert (h.shape, z.shape) == ((5, 12), (5, 2))
    with pytest.raises(ValueError, match=r"features of shape \(5, 12\), got \(5, 27\)"):
        encoder(torch.randn(5, 3, 3, 3))


def test_refuses_pictures_that_are_not_floating_point() -> None:
    with pytest.raises(ValueError, match=r"must be floating point, got torch\.uint8"):
        build_encoder()(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))


def test_vit_at_224_and_a_clear_word_at_other_sizes() -> None:
    encoder = build_encoder("vit_b_32", head=(16,), seed=0).eval()
    with torch.no_grad():
        h, z = encoder(torch.randn(1, 3, 224, 224))
    assert (h.shape, z.shape) == ((1, 768), (1, 16))
    with pytest.raises(ValueError, match=r"pictures of \(224, 224\) pixels only, got \(1, 3, 32, 32\)"):
        encoder(torch.randn(1, 3, 32, 32))


def test_weights_from_a_backbone_an_encoder_and_a_checkpoint(tmp_path: Path) -> None:
    trained = build_encoder("conv4", head=(8,), seed=1)
    torch.save(trained.backbone.state_dict(), tmp_path / "backbone.pt")
    torch.save(trained.state_dict(), tmp_path / "encoder.pt")
    state = {
        "step": 3,
        "encoder": trained.state_dict(),
        "objective": {},
        "optimizer": {"momentum": torch.ones(2)},
    }
    save_checkpoint(tmp_path, 3, state)
    for file in sorted(tmp_path.iterdir()):
        encoder = build_encoder("conv4", weights=file, seed=2)
        assert same(encoder.backbone, trained.backbone), file
        assert same(encoder.head, build_encoder("conv4", seed=2).head), file


def test_weights_from_the_folder_of_a_run_are_those_of_its_newest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    for step in (9, 10):
        save_checkpoint(folder, step, {"encoder": build_encoder("conv4", seed=step).state_dict()})
    filled = build_encoder("conv4", weights=tmp_path / "run", seed=0)
    newest = build_encoder("conv4", seed=10)
    assert torch.equal(filled.backbone.blocks[0].conv.weight, newest.backbone.blocks[0].conv.weight)
    with pytest.raises(ValueError, match="is a folder without a checkpoint"):
        build_encoder("conv4", weights=tmp_path)


def test_weights_of_a_whole_torchvision_model(tmp_path: Path) -> None:
    whole = zoo.shufflenet_v2_x0_5().eval()
    torch.save(whole.state_dict(), tmp_path / "shuffle.pth")
    encoder = build_encoder("shufflenet_v2_x0_5", weights=str(tmp_path / "shuffle.pth"), seed=0).eval()
    x = torch.randn(2, 3, 64, 64)
    assert_close(whole.fc(encoder(x)[0]), whole(x))


@pytest.mark.parametrize("weights", ["pretrained", "IMAGENET1K_V1"])
@pytest.mark.parametrize("name", ["squeezenet1_1", "googlenet", "inception_v3"])
def test_published_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, weights: str) -> None:
    """Read from torch's download folder, where a made file stands in for the download."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    published = zoo.get_model_weights(name).DEFAULT
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    options = {} if name == "squeezenet1_1" else {"aux_logits": True, "init_weights": False}
    whole = zoo.get_model(name, **options).eval()
    torch.save(whole.state_dict(), folder / published.url.rsplit("/", 1)[1])
    encoder = build_encoder(name, weights=weights, head=(), seed=0)
    ours, theirs = encoder.backbone.state_dict(), whole.state_dict()
    assert ours
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert encoder.train()(torch.randn(2, 3, 96, 96))[0].shape == (2, encoder.width)


def test_weights_from_safetensors(tmp_path: Path) -> None:
    trained = build_encoder("conv4", seed=1)
    save_file(trained.backbone.state_dict(), tmp_path / "conv4.safetensors")
    assert same(build_encoder("conv4", weights=tmp_path / "conv4.safetensors").backbone, trained.backbone)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "wide.pt"
    torch.save(build_encoder("conv4", width_multiplier=2).backbone.state_dict(), file)
    with pytest.raises(
        ValueError, match=r"blocks.0.conv.weight has shape \(16, 3, 3, 3\) for \(8, 3, 3, 3\).*more"
    ):
        build_encoder("conv4", weights=file)
    with pytest.raises(ValueError, match=r"do not fit this backbone: stem.0.conv.weight is missing"):
        build_encoder("resnet8", weights=file)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"not tensors", b"junk", b"PK\x03\x04 cut"])
def test_a_broken_file_of_weights_is_refused(tmp_path: Path, content: bytes, suffix: str) -> None:
    file = tmp_path / f"broken.{suffix}"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken.\w+ are not a file of tensors"):
        build_encoder("conv4", weights=file)


def test_a_file_without_a_state_dict_is_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match=r"list.pt hold no state dict"):
        build_encoder("conv4", weights=tmp_path / "list.pt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "runs/none.pt"}, "there is no file runs/none.pt"),
        ({"weights": "pretrained"}, "'conv4' has no published weights"),
        ({"pretrained": True}, "'conv4' has no published weights"),
        ({"weights": "IMAGENET1K_V1"}, "'conv4' has no published weights 'IMAGENET1K_V1'"),
        ({"pretrained": True, "weights": "x.pt"}, "pretrained=True or weights='x.pt', not both"),
        ({"head": (1, 2, 3, 4)}, "4 linear layers"),
        ({"backbone": "conv44"}, "'conv44' is not known; did you mean 'conv4'"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_encoder(**{"backbone": "conv4", **options})
