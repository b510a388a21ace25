"""Two and four real processes against one: losses, gradients, logs, cost and errors."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from rank_cases import CASES, COUNTED, D_COUNTED, FOUR, N_COUNTED, TURNS, Outcome, cost, outcome, turns
from torch import Tensor

from counterpoint.objectives import CLIP, MMCL, OBJECTIVES, NTXent
from counterpoint.objectives.base import Known
from counterpoint.ranks import AcrossRanks, gather

Results = list[dict[Any, Any]]


@cache
def alone(name: str, reverse: bool) -> Outcome:
    return outcome(CASES[name], (), reverse)


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def check(name: str, found: list[Outcome], single: Outcome) -> None:
    near = CASES[name].tolerance
    assert close(torch.stack([f.loss for f in found]).mean(), single.loss, near)
    for f in found:
        assert close(f.loss, single.loss, near)
        assert (f.plain is None) == (single.plain is None)
        assert f.plain is None or close(f.plain, f.loss, near)
        assert list(f.log) == list(single.log)
        for key in f.log.keys() - set(CASES[name].unlike):
            # Some values are counted in float32, in one process too.
            digits = near if single.log[key].dtype == torch.float64 else 1e-6
            assert close(f.log[key], single.log[key], digits), key
            assert f.log[key].dtype == single.log[key].dtype, key
        for grad, wanted in zip(f.grads, single.grads, strict=True):
            assert close(grad, wanted, near if wanted.dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one(ranks: Results, name: str):
    for counts, reverse in turns(name):
        check(name, [ranks[r][name, counts, reverse] for r in (0, 1)], alone(name, reverse))


@pytest.mark.parametrize("name", FOUR)
def test_four_processes_are_one(ranks: Results, name: str):
    check(name, [results["four", name] for results in ranks], alone(name, False))


def test_a_learned_temperature_when_the_processes_have_parted(ranks: Results):
    alone = CLIP(learnable=True)
    alone(torch.eye(3), torch.eye(3)).backward()
    for rank in (0, 1):
        assert torch.equal(ranks[rank]["after"], alone.log_scale.grad)


def test_some_of_the_ranks(ranks: Results):
    for group in ("group", "device group"):
        check("sum", [ranks[1][group], ranks[3][group]], alone("sum", False))
    for outside in (0, 2):
        assert "not in the group" in ranks[outside]["outside"]


def test_the_cases_are_of_all_objectives_and_say_something():
    assert {type(CASES[name].make()) for name in CASES} >= set(OBJECTIVES.values())
    single = {name: alone(name, False) for name in CASES}
    for name in CASES.keys() - {"structured_assignment never broken"}:
        assert float(single[name].grads[0].abs().max()) > 1e-4, name
    assert float(single["structured_assignment never broken"].loss) == 0
    assert 0 < float(single["structured_assignment one_to_one"].log["active"]) < 1
    assert int(single["supcon one view"].log["anchors_skipped"]) == 3
    assert single["mmcl"].log["iterations"] > 0
    # At the counts 7 and 1, one rank has no anchor with a positive.
    assert ((7, 1), True) in TURNS


@pytest.mark.parametrize("name", ["ntxent", "infonce", "supcon", "xclr"])
def test_a_rank_pays_for_its_anchors(ranks: Results, name: str):
    single = cost(COUNTED[name], (N_COUNTED,), None)
    for rank, local in ((0, 64), (1, 192)):
        found = ranks[rank]["cost"][name]
        assert found["operations"] * N_COUNTED == single["operations"] * local > 0
        assert found["largest"] * N_COUNTED == single["largest"] * local
        views = 2 * N_COUNTED * D_COUNTED * 4
        large = [size for _, size in found["collectives"] if size > 8 * 2 * 192]
        # The padded views on the way out, their gradients on the way back.
        assert large == [views * 384 // 256, views]


def test_qare_alone_gathers_nothing(ranks: Results):
    for rank in (0, 1):
        kinds = [(kind, size) for kind, size in ranks[rank]["cost"]["qare"]["collectives"] if size > 200]
        assert kinds == [("allreduce_", 2 * (D_COUNTED + 1) ** 2 * 4)] * 2
    assert len([c for c in ranks[0]["cost"]["sum"]["collectives"] if c[1] > 200]) == 4


REFUSED = {
    "width": "NTXent needs views of one width on every rank, got 4 on rank 0, 3 on rank 1",
    "views": "NTXent needs as many views on every rank, got 2 on rank 0, 3 on rank 1",
    "type": "got torch.float32 on rank 0, torch.float64 on rank 1",
    "labels": "rank 0: SupCon requires labels",
    "optional ids": "NTXent needs ids on every rank or on none, got none on rank 0, ids on rank 1",
    "unused": "rank 1: NTXent does not use labels",
    "short labels": "rank 1: labels must be an integer tensor of shape (4,)",
    "call": "got with_log on rank 0, forward on rank 1",
    "local target": "(3, 7) on rank 0, (4, 7) on rank 1, got (3, 3) on rank 0, (4, 4) on rank 1; graph",
    "flat target": "target must be floating and (n_local, n), got torch.float32 (7,)",
    "no target": "target must be floating and (n_local, n), got torch.float32 ()",
    "empty": "rank 0: NTXent: view 0 must be a floating tensor (n, d)",
    "nan": "rank 0: NTXent: view 0 must be finite",
    "anchors": "anchors are chosen by AcrossRanks",
    "raises ValueError": "rank 1: a negative entry",
    "no positive": "none of the 7 anchors has a positive",
    "gather width": "got (3, 4) torch.float32 on rank 0, (4, 3) torch.float32 on rank 1",
    "gather type": "got (3, 4) torch.float32 on rank 0, (4, 4) torch.float64 on rank 1",
    "gather none": "got (3, 4) torch.float32 on rank 0, none on rank 1",
}


@pytest.mark.parametrize("name", REFUSED)
def test_all_ranks_are_told_what_is_wrong(ranks: Results, name: str):
    told = [ranks[r]["bad"][name] for r in (0, 1)]
    assert told[0] == told[1]
    assert told[0].startswith("ValueError: ")
    assert REFUSED[name] in told[0]


def test_an_error_that_is_no_mistake_of_the_caller(ranks: Results):
    told = [ranks[r]["bad"]["raises MemoryError"] for r in (0, 1)]
    assert told == [
        "RuntimeError: rank 1 stopped with MemoryError: a negative entry",
        "MemoryError: a negative entry",
    ]


def test_gather_and_its_gradient(ranks: Results):
    rows = torch.cat([torch.arange(6.0).view(3, 2), torch.arange(4.0).view(2, 2) + 10])
    weight = 3 * torch.arange(10.0).view(5, 2)
    for rank, own in ((0, slice(0, 3)), (1, slice(3, 5))):
        found = ranks[rank]["gathered"]
        assert torch.equal(found["rows"], rows)
        assert torch.equal(found["grad"], weight[own])
        assert torch.equal(found["half"], torch.full((2, 3), 2.0, dtype=torch.bfloat16))
        assert found["ids"].tolist() == [5, 5, 6]


def test_the_guides_example(ranks: Results):
    first, second = ranks[2]["guide"], ranks[3]["guide"]
    assert first == pytest.approx(second, abs=1e-6)
    assert len(first) == 10
    assert first[-1] < first[0]


def test_one_process_is_the_objective_itself():
    z = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    objective = CLIP(learnable=True)
    across = AcrossRanks(objective)
    ids = torch.arange(5)
    assert torch.equal(across(*z, ids=ids), objective(*z, ids=ids))
    assert across.with_log(*z)[1].keys() == objective.with_log(*z)[1].keys()
    assert torch.equal(across(*z, anchors=slice(0, 2)), objective(*z, anchors=slice(0, 2)))
    assert gather(z) is z
    assert (across.accepts, across.name) == (("ids",), "CLIP")
    assert list(copy.deepcopy(across).parameters()) == list(objective.parameters())
    with pytest.raises(ValueError, match="CLIP does not use labels"):
        across(*z, labels=ids)
    with pytest.raises(ValueError, match="must be an Objective, got str"):
        AcrossRanks("ntxent")  # type: ignore[arg-type]


def test_logs_of_parts_take_the_largest_where_they_say_so():
    logs = {"kkt": torch.tensor([1.0, 3.0]), "support": torch.tensor([1.0, 3.0])}
    combined = MMCL().combine_log(logs, torch.tensor([0.25, 0.75]))
    assert combined == {"kkt": torch.tensor(3.0), "support": torch.tensor(2.5)}
    assert NTXent().moments([torch.eye(2)] * 2, 4) is None
    with pytest.raises(NotImplementedError, match="NTXent is no function of moments"):
        NTXent().from_moments((), 4, False)
    assert Known(anchors=slice(1, 2)).anchored(3) == slice(1, 2)
