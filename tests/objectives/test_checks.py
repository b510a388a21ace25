import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives import CLIP, OBJECTIVES, XCLR, Hinge, InfoNCE, NTXent, SupCon, Triplet
from counterpoint.objectives.checks import sample_similarity

Z = torch.eye(4)
BAD_NUMBERS = [0, 0.0, -1, float("nan"), float("inf"), None, "x"]


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=str)
@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (InfoNCE, "tau"),
        (NTXent, "tau"),
        (CLIP, "tau"),
        (CLIP, "min_tau"),
        (SupCon, "tau"),
        (XCLR, "tau"),
        (XCLR, "tau_s"),
        (Triplet, "margin"),
        (Hinge, "margin"),
    ],
)
def test_numbers_must_be_positive(cls, name: str, value: object):
    with pytest.raises(ValueError, match=f"{name} must be a finite number above 0, got {value!r}"):
        cls(**{name: value})


def test_functions_check_their_numbers_too():
    from counterpoint.objectives import clip, hinge, infonce, ntxent, supcon, triplet, xclr

    labels = torch.zeros(4, dtype=torch.int64)
    for call in (
        lambda: infonce(Z, Z, tau=0),
        lambda: ntxent(Z, Z, tau=-1),
        lambda: clip(Z, Z, tau=0),
        lambda: supcon(Z, Z, labels=labels, tau=0),
        lambda: xclr(Z, Z, target=Z, tau=0),
        lambda: xclr(Z, Z, target=Z, tau_s=0),
        lambda: triplet(Z, Z, margin=0),
        lambda: hinge(Z, Z, margin=0),
    ):
        with pytest.raises(ValueError, match="must be a finite number above 0"):
            call()


@pytest.mark.parametrize("make", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("change", [torch.Tensor.to_sparse, lambda z: z.to(torch.float8_e4m3fn)])
def test_views_are_dense_and_of_16_bits_or_more(make: type, change):
    objective = make()
    side = {"labels": torch.arange(4)} if "labels" in objective.requires else {}
    side |= {"target": Z} if "target" in objective.requires else {}
    with pytest.raises(
        ValueError, match=r"must be dense and float16, bfloat16, .*got shape \(4, 4\) and torch"
    ):
        objective(change(Z), change(Z), **side)


def test_a_sparse_target_is_refused():
    with pytest.raises(ValueError, match=r"target must be a floating tensor of shape .* torch.sparse_coo"):
        XCLR()(Z, Z, target=Z.to_sparse())


def test_a_number_that_would_be_learned_is_refused():
    # As a float it would stand still, with nothing said.
    with pytest.raises(ValueError, match="tau must be a finite number above 0, got Parameter"):
        NTXent(tau=torch.nn.Parameter(torch.tensor(0.5)))
    assert NTXent(tau=torch.tensor(0.5)).tau == 0.5


def test_reduction_must_be_known():
    with pytest.raises(ValueError, match="reduction must be one of log_mean, mean_log, got 'sum'"):
        NTXent(reduction="sum")


def side_of(name: str, n: int) -> dict[str, torch.Tensor]:
    return {"supcon": {"labels": torch.zeros(n, dtype=torch.int64)}, "xclr": {"target": torch.eye(n)}}.get(
        name, {}
    )


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(
    ("views", "words"),
    [
        ([torch.zeros(4, 3), torch.zeros(4, 2)], r"same shape \(n, d\), got \(4, 3\), \(4, 2\)"),
        ([torch.zeros(4, 3), torch.zeros(1, 3)], r"same shape \(n, d\), got \(4, 3\), \(1, 3\)"),
        ([torch.zeros(4, 3), torch.zeros(4)], r"view 1 must be .* got shape \(4,\)"),
        ([torch.zeros(4, 3, 1), torch.zeros(4, 3, 1)], r"view 0 must be .* got shape \(4, 3, 1\)"),
        ([torch.zeros(0, 3), torch.zeros(0, 3)], r"n >= 1 and d >= 1, got shape \(0, 3\)"),
        ([torch.zeros(4, 0), torch.zeros(4, 0)], r"n >= 1 and d >= 1, got shape \(4, 0\)"),
        (
            [torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.int64)],
            "view 1 must be a floating .* torch.int64",
        ),
        ([torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.complex64)], "complex64"),
        ([torch.zeros(4, 3), [[0.0] * 3] * 4], r"view 1 must be a tensor \(n, d\), got list"),
        ([torch.zeros(4, 3), torch.zeros(4, 3, device="meta")], "same device, got cpu, meta"),
    ],
    ids=str,
)
def test_views_must_fit_together(name: str, views: list[torch.Tensor], words: str):
    with pytest.raises(ValueError, match=words):
        OBJECTIVES[name]()(*views, **side_of(name, 4))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_views_are_needed(name: str):
    fewest = 1 if name in ("supcon", "xclr") else 2
    with pytest.raises(ValueError, match="view"):
        OBJECTIVES[name]()(*[Z] * (fewest - 1), **side_of(name, 4))


@pytest.mark.parametrize("name", ["infonce", "ntxent", "clip", "triplet", "hinge", "sparseclr", "ntlogistic"])
@pytest.mark.parametrize(
    ("ids", "got"),
    [
        (torch.arange(3), r"shape \(3,\) and torch.int64"),
        (torch.arange(4)[:, None], r"shape \(4, 1\)"),
        (torch.arange(4.0), "torch.float32"),
        (torch.ones(4, dtype=torch.bool), "torch.bool"),
        ([0, 1, 2, 3], "list"),
    ],
    ids=str,
)
def test_ids_must_be_n_integers(name: str, ids: torch.Tensor, got: str):
    with pytest.raises(ValueError, match=rf"ids must be an integer tensor of shape \(4,\), got .*{got}"):
        OBJECTIVES[name]()(Z, Z, ids=ids)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.arange(5), r"labels must be an integer tensor of shape \(4,\), got shape \(5,\)"),
        (torch.arange(4.0), "torch.float32"),
        (torch.tensor([0, -2, 0, 0]), "labels must be -1 or above, got -2"),
    ],
    ids=str,
)
def test_labels_must_be_n_integers(labels: torch.Tensor, words: str):
    with pytest.raises(ValueError, match=words):
        SupCon()(Z, Z, labels=labels)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=str)
def test_any_integer_type_will_do(dtype: torch.dtype):
    labels = torch.tensor([0, 0, 1, 2])
    assert torch.equal(SupCon()(Z, Z, labels=labels.to(dtype)), SupCon()(Z, Z, labels=labels))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (torch.eye(5), r"target must be a floating tensor of shape \(4, 4\), got shape \(5, 5\)"),
        (torch.eye(8), r"got shape \(8, 8\)"),
        (torch.ones(4), r"got shape \(4,\)"),
        (torch.eye(4, dtype=torch.int64), "torch.int64"),
        (torch.eye(4, dtype=torch.bool), "torch.bool"),
        ("G", "got str"),
    ],
    ids=str,
)
def test_target_must_be_n_by_n(target: torch.Tensor, words: str):
    with pytest.raises(ValueError, match=words):
        XCLR()(Z, Z, target=target)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_target_must_be_finite(value: float):
    target = torch.eye(4)
    target[1, 2] = value
    for call in (XCLR(), XCLR().with_log):
        with pytest.raises(ValueError, match="target must be finite, got 1 of 16 NaN or infinite"):
            call(Z, Z, target=target)


def test_views_of_different_precision_meet_at_the_higher():
    z0, z1 = (z.detach() for z in random_views(2, 4))
    assert NTXent()(z0, z1.float()).dtype == torch.float64
    assert NTXent()(z0.half(), z1.bfloat16()).dtype == torch.float32


def test_a_similarity_that_its_type_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="target must be finite"):
        sample_similarity("target", 1e200 * torch.eye(2, dtype=torch.float64), torch.eye(2))
