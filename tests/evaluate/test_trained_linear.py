"""Trained probes against torch's own layer and optimiser, and by what may and may not move their number."""

import copy

import pytest
import torch
from feature_sets import clusters, split
from torch import nn

from counterpoint.evaluate import crop_batches, trained_linear
from counterpoint.evaluate.trained_linear import PROTOCOLS, Training, _batches, _Layer, training

CPU = torch.device("cpu")


def splits(n=300, d=10, classes=5, noise=1.5):
    train = clusters(n, d, classes, noise, seed=3)
    test = clusters(100, d, classes, noise, seed=3, offset=1)
    return split(*train, classes=classes), split(*test, classes=classes)


@pytest.mark.parametrize(
    "how",
    [
        Training("sgd", lr=0.5, batch_size=64, epochs=3, momentum=0.9, schedule="linear", start="zero"),
        Training("adam", lr=1e-2, batch_size=50, epochs=3, weight_decay=0.1),
    ],
)
def test_it_trains_as_a_torch_layer_does(how):
    train, _ = splits()
    h, y = train.h, train.labels["kind"].values
    layer = _Layer(10, 5, how, torch.Generator().manual_seed(0), CPU)
    peer = nn.Linear(10, 5)
    with torch.no_grad():
        peer.weight.copy_(layer.weight[:-1].T)
        peer.bias.copy_(layer.weight[-1])
    if how.optimizer == "sgd":
        assert not layer.weight.any()
        optimizer = torch.optim.SGD(peer.parameters(), lr=how.lr, momentum=0.9)
    else:
        assert 0.2 < float(layer.weight.detach().abs().max()) <= 10**-0.5
        optimizer = torch.optim.Adam(peer.parameters(), lr=how.lr, weight_decay=0.1)
    orders = [torch.randperm(300, generator=torch.Generator().manual_seed(e)) for e in range(3)]
    loss = layer.fit(lambda epoch: [(h[orders[epoch]], y[orders[epoch]])], 300)
    steps = 3 * -(-300 // how.batch_size)
    step, last = 0, 0.0
    for order in orders:
        last = 0.0
        for ids in order.split(how.batch_size):
            if how.schedule == "linear":
                optimizer.param_groups[0]["lr"] = how.lr * (1 - step / steps)
            optimizer.zero_grad()
            each = nn.functional.cross_entropy(peer(h[ids]), y[ids])
            each.backward()
            optimizer.step()
            step, last = step + 1, last + float(each.detach()) * len(ids)
    torch.testing.assert_close(layer.weight[:-1].T, peer.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.weight[-1], peer.bias, rtol=1e-4, atol=1e-5)
    assert loss == pytest.approx(last / 300, rel=1e-4)


def test_the_named_protocols_are_the_published_ones():
    sgd = training("linear-sgd-crops")
    assert (sgd.optimizer, sgd.lr, sgd.batch_size, sgd.momentum) == ("sgd", 1.6, 4096, 0.9)
    assert (sgd.weight_decay, sgd.schedule, sgd.start, sgd.epochs) == (0.0, "linear", "zero", 100)
    assert sgd.augmentation == "crop_flip"
    adam = training("linear-adam")
    assert (adam.optimizer, adam.lr, adam.batch_size, adam.epochs) == ("adam", 1e-3, 128, 100)
    assert (adam.weight_decay, adam.schedule, adam.augmentation) == (0.0, "constant", "none")
    assert not any(how.standardise for how in PROTOCOLS.values())


@pytest.mark.parametrize("protocol", ["linear-sgd", "linear-adam", "linear-adam-512"])
def test_it_learns_what_a_plane_divides(protocol):
    train, test = splits(noise=0.3)
    # 300 rows make few steps of Adam, and the published rate is made for 50 000.
    changes = {"lr": 0.05} if "adam" in protocol else {}
    result = trained_linear(train, test, protocol=protocol, **changes)
    assert result.protocol == protocol
    assert result.value > 0.97
    asked = {"optimizer", "lr", "batch_size", "epochs", "momentum", "weight_decay", "schedule", "start"}
    assert asked | {"augmentation", "standardise", "seed", "column", "train_n"} <= set(result.settings)
    assert result.chosen == ("train_loss",)
    assert 0 < result.settings["train_loss"] < 1


def test_a_seed_decides_and_one_seed_gives_one_number():
    train, test = splits()
    losses = [trained_linear(train, test, seed=seed, epochs=3).settings["train_loss"] for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_the_global_random_state_is_left_alone():
    train, test = splits()
    before = torch.get_rng_state()
    trained_linear(train, test, epochs=1)
    assert torch.equal(before, torch.get_rng_state())


def test_a_small_split_is_one_batch_and_with_sgd_at_a_smaller_rate():
    train, test = splits()
    adam = [
        trained_linear(train, test, epochs=7, batch_size=size).settings["train_loss"] for size in (300, 512)
    ]
    assert adam[0] == adam[1]
    whole = trained_linear(train, test, protocol="linear-sgd", epochs=7)
    scaled = trained_linear(train, test, protocol="linear-sgd", epochs=7, batch_size=300, lr=1.6 * 300 / 4096)
    assert whole.settings["train_loss"] == pytest.approx(scaled.settings["train_loss"], rel=1e-6)


def test_unlabelled_rows_and_gaps_in_the_labels():
    train, test = splits(noise=0.3)
    values = train.labels["kind"].values.clone()
    values[:40] = -1
    values[values == 2] = -1  # never seen, and labels go on above it
    gapped = split(train.h, values, classes=5)
    result = trained_linear(gapped, test, protocol="linear-sgd")
    kept = values >= 0
    assert (
        result.value
        == trained_linear(split(train.h[kept], values[kept], classes=5), test, protocol="linear-sgd").value
    )
    unseen = int((test.labels["kind"].values == 2).sum())
    assert result.value == pytest.approx(1 - unseen / 100, abs=0.03)
    assert result.settings["train_unlabelled"] == int((~kept).sum())
    assert result.settings["test_n_unseen"] == unseen


def test_standardised_features_do_not_see_their_scale():
    train, test = splits()
    scale = torch.logspace(-2, 2, 10)
    moved = [split(part.h * scale + 5, part.labels["kind"].values) for part in (train, test)]
    plain = trained_linear(train, test, standardise=True, lr=0.02).settings["train_loss"]
    seen = [trained_linear(*moved, standardise=s, lr=0.02).settings["train_loss"] for s in (True, False)]
    assert seen[0] == pytest.approx(plain, rel=1e-3)
    assert seen[1] > 1.2 * plain


class Noted(nn.Module):
    """An encoder whose features are its pixels through batch norm, and which counts its calls in a buffer."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        h = self.norm(x.flatten(1))
        return h, h


def test_crops_are_features_of_a_frozen_encoder_made_anew_each_epoch():
    train, test = splits(noise=0.5)
    encoder = Noted(10).train()
    encoder.norm.running_mean += 0.1
    before = copy.deepcopy(encoder.state_dict())
    epochs = []

    def views(epoch):
        epochs.append(epoch)
        g = torch.Generator().manual_seed(epoch)
        for ids in torch.randperm(300, generator=g).split(70):
            yield ids, train.h[ids] + 0.1 * torch.randn(len(ids), 10, generator=g)

    result = trained_linear(
        train, test, protocol="linear-sgd-crops", epochs=30, batches=crop_batches(encoder, views)
    )
    assert epochs == list(range(30))
    assert result.value > 0.9
    assert result.settings["augmentation"] == "crop_flip"
    assert encoder.training
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())


def test_batches_of_the_same_features_give_the_number_without_crops():
    train, test = splits()
    plain = trained_linear(train, test, protocol="linear-sgd", epochs=5, lr=0.3, batch_size=300)

    def batches(epoch):
        for ids in torch.randperm(300, generator=torch.Generator().manual_seed(epoch)).split(37):
            yield ids, train.h[ids]

    crops = trained_linear(
        train, test, protocol="linear-sgd-crops", epochs=5, lr=0.3, batch_size=300, batches=batches
    )
    assert crops.settings["train_loss"] == pytest.approx(plain.settings["train_loss"], rel=1e-5)
    assert crops.value == plain.value


def test_unlabelled_rows_are_left_out_of_batches():
    train, test = splits()
    values = train.labels["kind"].values.clone()
    values[::3] = -1
    values[values == 2] = -1
    some = split(train.h, values, classes=5)
    poisoned = torch.where((values < 0)[:, None], torch.tensor(1e6), train.h)

    def batches(epoch):
        return [(torch.arange(300), poisoned)]

    loss = trained_linear(some, test, protocol="linear-sgd-crops", epochs=5, batches=batches).settings[
        "train_loss"
    ]
    assert loss == pytest.approx(
        trained_linear(some, test, protocol="linear-sgd", epochs=5).settings["train_loss"], rel=1e-5
    )


@pytest.mark.parametrize("size", [1, 7, 64, 300, 1000])
def test_pieces_become_batches_of_one_size(size):
    x, y = torch.randn(300, 2), torch.arange(300)
    pieces = zip(torch.split(x, 41), torch.split(y, 41), strict=True)
    made = list(_batches(pieces, size))
    assert torch.equal(torch.cat([part for part, _ in made]), x)
    assert torch.equal(torch.cat([part for _, part in made]), y)
    assert [len(part) for part, _ in made] == [len(part) for part in torch.split(y, size)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"protocol": "linear-agd"}, r"unknown linear protocol 'linear-agd': .*did you mean"),
        ({"epoch": 3}, r"no setting 'epoch': .*did you mean 'epochs'\?"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"lr": 0.0}, r"lr must be a finite number above 0, got 0\.0"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1\.0"),
        ({"weight_decay": -1.0}, r"weight_decay must be a finite number >= 0, got -1\.0"),
        ({"optimizer": "lbfgs"}, "optimizer must be one of sgd, adam, got 'lbfgs'"),
        ({"protocol": "linear-sgd-crops"}, "needs batches="),
        ({"batches": lambda epoch: []}, "takes no batches="),
        ({"protocol": "linear-sgd-crops", "batches": lambda epoch: []}, "no labelled row"),
        (
            {"protocol": "linear-sgd-crops", "batches": lambda e: [(torch.tensor([300]), torch.ones(1, 10))]},
            "row 300, and train has 300 rows",
        ),
        (
            {"protocol": "linear-sgd-crops", "batches": lambda e: [], "standardise": True},
            "standardise needs augmentation='none'",
        ),
    ],
)
def test_faults_are_named(words, message):
    train, test = splits()
    with pytest.raises(ValueError, match=message):
        trained_linear(train, test, **words)


def test_a_rate_that_breaks_it_is_said():
    train, test = splits()
    with pytest.raises(ValueError, match=r"not finite after \d+ steps at lr=1e\+38"):
        trained_linear(train, test, protocol="linear-sgd", lr=1e38, batch_size=64, epochs=3)
