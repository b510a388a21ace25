"""Extraction counts each sample once and leaves the encoder as it was; files give features back."""

from pathlib import Path

import numpy as np
import pytest
import torch
from feature_sets import split
from PIL import Image
from torch import Tensor, nn

from counterpoint.data.batches import plain_batches
from counterpoint.data.samples import Labels, Samples
from counterpoint.data.shapes import shapes
from counterpoint.data.views import ViewSpec
from counterpoint.evaluate import Features, extract, knn, linear_probe, load_features, save_features
from counterpoint.models.encoder import build_encoder

PICTURES = torch.rand(23, 3, 16, 16, generator=torch.Generator().manual_seed(0))
SAMPLES = Samples(
    "toy",
    [f"p{i}" for i in range(23)],
    picture=lambda i: Image.new("RGB", (16, 16)),
    labels={"kind": Labels(torch.arange(23) % 3, ["x", "y", "z"])},
)
Pairs = list[tuple[Tensor, Tensor]]


def pairs(ids: Tensor, size: int = 5) -> Pairs:
    return [(part, PICTURES[part]) for part in ids.split(size)]


class Restless(nn.Module):
    """Changes a buffer in `forward`, in place and by a new tensor, whatever its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build_encoder("conv4", head=(8, 4), seed=0)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        self.last = x.mean(dim=(0, 2, 3))
        h: Tensor
        h, z = self.inner(x)
        return h, z


def state(module: nn.Module) -> dict[str, bytes]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()}


def test_rows_are_those_of_the_encoder_in_eval_mode():
    encoder = build_encoder("conv4", head=(8, 4), seed=0)
    encoder(PICTURES)  # moves the running statistics off their start
    got = extract(encoder, pairs(torch.arange(23)), SAMPLES)
    with torch.no_grad():
        h, z = encoder.eval()(PICTURES)
    torch.testing.assert_close(got.h, h)
    torch.testing.assert_close(extract(encoder, pairs(torch.arange(23)), SAMPLES, layer="z").h, z)
    assert got.keys == SAMPLES.keys
    assert got.labels["kind"].values.tolist() == SAMPLES.labels["kind"].values.tolist()
    assert (got.name, got.layer, got.h.requires_grad) == ("toy", "h", False)


def test_order_and_size_of_batches_do_not_matter():
    encoder = build_encoder("conv4", head=(8, 4), seed=0)
    mixed = torch.randperm(23, generator=torch.Generator().manual_seed(1))
    got = extract(encoder, pairs(mixed, size=7), SAMPLES)
    torch.testing.assert_close(got.h, extract(encoder, pairs(torch.arange(23), size=23), SAMPLES).h)


def test_probing_leaves_the_encoder_byte_for_byte():
    encoder = Restless()
    encoder.train()
    encoder.inner.backbone.eval()  # a user may hold some layers in eval mode while training others
    before, modes = state(encoder), [module.training for module in encoder.modules()]
    random = torch.get_rng_state()
    features = extract(encoder, pairs(torch.arange(23)), SAMPLES)
    knn(features, features, k=3)
    linear_probe(features, features)
    assert state(encoder) == before
    assert [module.training for module in encoder.modules()] == modes
    assert set(modes) == {True, False}
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_an_error_midway_leaves_the_encoder_too():
    encoder = Restless()
    before = state(encoder)
    with pytest.raises(ValueError, match="comes twice"):
        extract(encoder, pairs(torch.tensor([0, 1, 2, 3, 4, 0])), SAMPLES)
    assert state(encoder) == before
    assert all(module.training for module in encoder.modules())


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (torch.arange(22), "1 of 23 samples of 'toy' were not in the batches; the first is 'p22'"),
        (torch.arange(0), "23 of 23 samples"),
        (torch.tensor([0, 1, 2, 2]), "'p2' of 'toy' comes twice"),
        (torch.arange(24) % 23, "'p0' of 'toy' comes twice"),
        (torch.tensor([-1, 1]), "id -1 is not among the 23 samples"),
    ],
)
def test_each_sample_once(ids: Tensor, says: str):
    with pytest.raises(ValueError, match=says):
        extract(build_encoder("conv4", head=(8, 4), seed=0), pairs(ids), SAMPLES)


def test_an_id_past_the_end_is_refused():
    with pytest.raises(ValueError, match="id 23 is not among the 23 samples"):
        extract(build_encoder("conv4", seed=0), [(torch.tensor([23]), PICTURES[:1])], SAMPLES)


@pytest.mark.parametrize("ids", [torch.zeros(2, 2, dtype=torch.int64), torch.tensor([0.0, 1.0])])
def test_ids_must_be_a_row_of_numbers(ids: Tensor):
    with pytest.raises(ValueError, match="ids must be"):
        extract(build_encoder("conv4", seed=0), [(ids, PICTURES[:2])], SAMPLES)


def test_refuses_by_name():
    encoder = build_encoder("conv4", head=(8, 4), seed=0)
    with pytest.raises(ValueError, match="layer must be one of h, z, got 'head'"):
        extract(encoder, pairs(torch.arange(23)), SAMPLES, layer="head")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the encoder is on cpu, device is cuda"):
        extract(encoder, pairs(torch.arange(23)), SAMPLES, device="cuda")
    with pytest.raises(ValueError, match="'none' has no samples"):
        extract(encoder, [], Samples("none", [], picture=lambda i: Image.new("RGB", (1, 1))))
    with torch.no_grad():
        next(encoder.parameters())[0] = torch.nan
    with pytest.raises(ValueError, match="not finite in 23 of 23 rows; the first is 'p0'"):
        extract(encoder, pairs(torch.arange(23)), SAMPLES)


def test_a_real_split_goes_through():
    samples = shapes("test", count=12, size=32)
    got = extract(
        build_encoder("conv4", seed=0),
        plain_batches(samples, ViewSpec(size=32).plain(), batch_size=5, workers=0),
        samples,
    )
    assert got.h.shape == (12, 64)
    assert list(got.labels) == list(samples.labels)


def test_features_refuse_what_does_not_fit():
    kinds = Labels(torch.tensor([0]), ["x"])
    with pytest.raises(ValueError, match=r"must be \(n, d\) float32"):
        Features(torch.zeros(2, 3, dtype=torch.float64), ["a", "b"])
    with pytest.raises(ValueError, match="1 keys for 2"):
        Features(torch.zeros(2, 3), ["a"])
    with pytest.raises(ValueError, match="'kind' has 1 values for 2"):
        Features(torch.zeros(2, 3), ["a", "b"], {"kind": kinds})
    with pytest.raises(ValueError, match="layer must be"):
        Features(torch.zeros(1, 3), ["a"], layer="conv3")
    with pytest.raises(ValueError, match="have no label column 'sort'; they have kind"):
        Features(torch.zeros(1, 3), ["a"], {"kind": kinds}).column("sort")
    with pytest.raises(ValueError, match="have no labels"):
        Features(torch.zeros(1, 3), ["a"]).column()


@pytest.mark.parametrize(("dtype", "error"), [("float16", 1e-3), ("float32", 0.0)])
def test_a_file_gives_features_back(tmp_path: Path, dtype: str, error: float):
    h = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    labels = {
        "kind": Labels(torch.tensor([0, 1, -1, 1, 0]), ["Äpfel", "b"]),
        "a/b": Labels(torch.full((5,), -1), []),
    }
    features = Features(h, ["k", "kk", "日本", "", "x y"], labels, "toy/test", "z")
    path = tmp_path / "new" / "features.npz"
    save_features(path, features, dtype)  # type: ignore[arg-type]
    got = load_features(path)
    torch.testing.assert_close(got.h, h, rtol=error, atol=error)
    assert got.h.dtype == torch.float32
    assert (got.keys, got.name, got.layer) == (features.keys, "toy/test", "z")
    assert list(got.labels) == ["kind", "a/b"]
    for column, column_labels in labels.items():
        assert got.labels[column].values.tolist() == column_labels.values.tolist()
        assert list(got.labels[column].names) == list(column_labels.names)
    with np.load(path) as stored:
        assert (stored["h"].dtype, stored["labels_kind"].dtype) == (np.dtype(dtype), np.int64)
        assert stored["names_kind"].tolist() == ["Äpfel", "b"]


@pytest.mark.parametrize("scale", [1e6, 1e-9])
def test_half_precision_is_refused_where_it_would_spoil_a_row(tmp_path: Path, scale: float):
    h = torch.ones(3, 2)
    h[1] *= scale
    features = split(h, [0, 1, 0])
    with pytest.raises(ValueError, match=r"float16 cannot hold 1 of 3 feature rows: 'made/1' .*float32"):
        save_features(tmp_path / "f.npz", features)
    assert not list(tmp_path.iterdir())
    save_features(tmp_path / "f.npz", features, "float32")
    assert torch.equal(load_features(tmp_path / "f.npz").h, h)


def test_rows_of_zeros_fit_in_half_precision(tmp_path: Path):
    save_features(tmp_path / "f.npz", split(torch.zeros(2, 3), [0, 1]))
    assert torch.equal(load_features(tmp_path / "f.npz").h, torch.zeros(2, 3))


def test_files_that_hold_no_features_are_named(tmp_path: Path):
    path = tmp_path / "features.npz"
    save_features(path, split(torch.randn(50, 8), torch.arange(50) % 2))
    whole = path.read_bytes()
    for content in (b"", b"junk" * 50, whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"features\.npz is not an npz file"):
            load_features(path)
    np.save(tmp_path / "bare.npy", np.zeros(3))
    with pytest.raises(ValueError, match="one bare array"):
        load_features(tmp_path / "bare.npy")
    np.savez(path, h=np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="holds no array 'keys'"):
        load_features(path)
    np.savez(path, h=np.zeros((1, 2), np.float32), keys=np.array(["a"]), labels_kind=np.array([0]))
    with pytest.raises(ValueError, match="holds no array 'names_kind'"):
        load_features(path)
    with pytest.raises(ValueError, match="dtype must be float16 or float32"):
        save_features(path, split(torch.ones(2, 2), [0, 1]), "int8")  # type: ignore[arg-type]
