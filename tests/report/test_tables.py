import math
import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest

from counterpoint.evaluate.record import Result
from counterpoint.objectives import OBJECTIVES
from counterpoint.report.answer import Change, answer, change
from counterpoint.report.runs import Method, Run
from counterpoint.report.tables import (
    build_table,
    collect,
    detail,
    paired,
    protocols,
    recipe_differences,
    seed_differences,
    standings,
)
from counterpoint.report.trained import OBJECTIVES as report_objectives
from counterpoint.report.trained import graph_of, objective_of


def result(value: float, column: str = "object", protocol: str = "knn", **settings: object) -> Result:
    settings = {"column": column, **({"k": 20} if protocol == "knn" else {}), **settings}
    return Result(protocol=protocol, version=1, value=value, n=100, settings=settings)


def method(index: int, name: str, values: Mapping[int, list[Result]], recipe: dict | None = None) -> Method:
    runs = (
        Run(
            Path(name) / f"seed-{seed}",
            name,
            seed,
            {"name": name, "seed": seed} | (recipe or {}),
            tuple(found),
            {},
        )
        for seed, found in values.items()
    )
    return Method(index, name, tuple(runs))


def by_seed(*values: float, column: str = "object") -> dict[int, list[Result]]:
    return {seed: [result(value, column)] for seed, value in enumerate(values)}


def text(methods: list[Method]) -> str:
    return " ".join(answer(methods, build_table(methods)))


def test_mean_and_spread_over_seeds() -> None:
    table = build_table([method(0, "a", by_seed(0.6, 0.7, 0.65))])
    (cell,) = table.cells[table.measures[0]].values()
    assert cell.over.mean == pytest.approx(0.65)
    assert cell.over.std == pytest.approx(statistics.stdev([0.6, 0.7, 0.65]))
    assert cell.over.n == 3
    assert not cell.best


def test_difference_is_paired_by_seed() -> None:
    # The seeds move both recipes by 20 points; the difference within a seed is 2 points give or take 0.1.
    base, other = method(0, "a", by_seed(0.40, 0.50, 0.60)), method(1, "b", by_seed(0.42, 0.521, 0.619))
    table = build_table([base, other])
    cells = table.cells[table.measures[0]]
    apart = paired(cells[1], cells[0])
    assert apart is not None
    assert apart.mean == pytest.approx(0.02)
    # t(0.975, 2) = 4.3027
    assert apart.high - apart.mean == pytest.approx(4.3027 * 0.001 / math.sqrt(3), rel=1e-3)
    assert cells[1].best
    assert not cells[0].close
    assert text([base, other]) == (
        "Judged by the 20 nearest neighbours, <strong>b</strong> is best on object "
        "(52.0 %, 2.0 points above the baseline)."
    )


def test_difference_within_the_spread_is_called_not_clear() -> None:
    methods = [method(0, "a", by_seed(0.40, 0.50, 0.60)), method(1, "b", by_seed(0.52, 0.49, 0.58))]
    table = build_table(methods)
    assert table.cells[table.measures[0]][0].close
    assert text(methods) == (
        "Judged by the 20 nearest neighbours, the lead on object "
        "(<strong>b</strong>, 3.0 points above the baseline) is not clear with 3 seeds."
    )
    assert "is best on" not in text(methods)
    assert change(table, methods[1]) == Change(unclear=("object",))


def test_only_shared_seeds_are_compared() -> None:
    methods = [
        method(0, "a", {0: [result(0.5)], 1: [result(0.6)]}),
        method(1, "b", {1: [result(0.7)], 2: [result(0.9)]}),
    ]
    table = build_table(methods)
    apart = paired(table.cells[table.measures[0]][1], table.cells[table.measures[0]][0])
    assert apart is not None
    assert (apart.n, apart.holds_zero) == (1, None)
    assert apart.mean == pytest.approx(0.1)
    strangers = [method(0, "a", {0: [result(0.5)]}), method(1, "b", {5: [result(0.7)]})]
    assert "the baseline has no result with the same seed" in text(strangers)


def test_baseline_ahead_and_tied() -> None:
    ahead = [method(0, "a", by_seed(0.70, 0.71, 0.72)), method(1, "b", by_seed(0.50, 0.511, 0.519))]
    assert text(ahead).endswith("the baseline <strong>a</strong> has the highest mean on object.")
    assert change(build_table(ahead), ahead[1]).below == ("object −20.0",)
    tied = [method(0, "a", by_seed(0.50, 0.60, 0.70)), method(1, "b", by_seed(0.55, 0.58, 0.66))]
    assert "there another recipe is not clearly lower" in text(tied)


def test_k_of_the_table_does_not_depend_on_the_results() -> None:
    def at(ks: tuple[int, ...]) -> list[int | None]:
        found = [
            Result(protocol="knn", version=1, value=1 / k, n=9, settings={"column": "a", "k": k}) for k in ks
        ]
        return [measure.k for measure in build_table([method(0, "m", {0: found})]).measures]

    assert at((1, 5, 20, 200)) == [20]
    assert at((1, 5, 50)) == [5]
    assert at((1, 5, 50, 200)) == [5]
    assert at((7,)) == [7]


def test_settings_that_a_run_finds_do_not_split_a_measure() -> None:
    found = {
        seed: [
            Result(protocol="linear", version=1, value=0.5, n=9, chosen=("l2",),
                   settings={"column": "a", "l2": 10.0**seed, "seed": seed})
        ]
        for seed in range(3)
    }  # fmt: skip
    measures = collect([method(0, "m", found)])
    assert [len(values[0]) for values in measures.values()] == [3]


def test_different_settings_stand_in_different_columns() -> None:
    found = {0: [result(0.5, temperature=0.07), result(0.6, temperature=0.1)]}
    assert len(build_table([method(0, "m", found)]).measures) == 2


def test_a_gap_has_no_best_end() -> None:
    def gap(value: float) -> dict[int, list[Result]]:
        return {
            0: [
                Result(protocol="linear", version=1, metric="gap", value=value, n=9, settings={"column": "a"})
            ]
        }

    methods = [method(0, "a", gap(-0.2)), method(1, "b", gap(0.1))]
    table = build_table(methods)
    assert not any(cell.best or cell.close for cells in table.cells.values() for cell in cells.values())
    assert text(methods).startswith("No accuracy has been measured; the pictures below")


def test_one_protocol_may_disagree_with_another() -> None:
    def both(near: float, far: float) -> dict[int, list[Result]]:
        return {seed: [result(near + seed / 100), result(far, protocol="linear")] for seed in range(2)}

    methods = [method(0, "a", both(0.5, 0.9)), method(1, "b", both(0.6, 0.8))]
    assert text(methods).endswith("The linear probe puts another recipe first.")


def test_background_protocol_with_two_accuracies_does_not_vote() -> None:
    def found(near: float, seen: float) -> dict[int, list[Result]]:
        kinds = {"original": seen, "recombined": seen - 0.1}
        back = [result(value, protocol="background", split=split) for split, value in kinds.items()]
        return {seed: [result(near + seed / 100), *back] for seed in range(2)}

    methods = [method(0, "a", found(0.5, 0.9)), method(1, "b", found(0.6, 0.8))]
    table = build_table(methods)
    assert [detail(m, table.measures[1:]) for m in table.measures[1:]] == [
        "split original",
        "split recombined",
    ]
    assert "background" not in text(methods)


def test_standings_tell_clear_from_unclear() -> None:
    found = standings(
        {0: {0: 0.5, 1: 0.6}, 1: {0: 0.7, 1: 0.8001}, 2: {0: 0.65, 1: 0.83}, 3: {0: 0.1}, 4: {}}
    )
    assert [(one.method, one.clear) for one in found] == [(1, None), (2, False), (0, True), (3, None)]


def test_settings_in_which_recipes_differ() -> None:
    a = method(0, "a", by_seed(0.5), {"objective": {"name": "infonce", "tau": 0.1}, "train": {"epochs": 5}})
    b = method(
        1,
        "b",
        by_seed(0.5),
        {"objective": {"name": "xclr", "tau": 0.1, "tau_s": 0.2}, "train": {"epochs": 5}},
    )
    assert recipe_differences([a, b]) == [
        ("objective.name", ["infonce", "xclr"]),
        ("objective.tau_s", ["–", "0.2"]),
    ]
    assert seed_differences(a) == []


def test_protocols_tell_what_holds_for_all_columns() -> None:
    found = {0: [result(0.5, "a", classes=3, layer="h"), result(0.5, "b", classes=7, layer="h")]}
    (protocol,) = protocols(collect([method(0, "m", found)]))
    assert protocol.columns == ("a", "b")
    assert protocol.settings == {"layer": "h"}
    assert protocol.by_column == {"classes": {"a": "3", "b": "7"}}


def matched(*recall: float, assignment: float = 0.5) -> dict[int, list[Result]]:
    """Results of matching alone: recall@1 from a to b by seed, and the rest."""
    found = {}
    for seed, value in enumerate(recall):
        rows = [
            ("recall", value, {"k": 1, "direction": "a to b"}),
            ("recall", value + 0.1, {"k": 5, "direction": "a to b"}),
            ("recall", value + 0.02, {"k": 1, "direction": "b to a"}),
            ("mAP", 0.9, {"direction": "a to b"}),
            ("assignment", assignment, {"direction": "one to one"}),
        ]
        found[seed] = [
            Result(
                protocol="matching",
                version=1,
                metric=metric,
                value=reached,
                n=100,
                settings={"column": "identity", **settings},
            )
            for metric, reached, settings in rows
        ]
    return found


def test_where_only_matching_was_measured_the_answer_is_about_it() -> None:
    assert text([method(0, "a", matched(0.7))]) == (
        "Judged by the matching of identities, <strong>a</strong> reaches 70.0 % on recall@1 from a to b, "
        "72.0 % on recall@1 from b to a and 50.0 % on assignment. "
        "There is no second recipe to compare it with."
    )
    methods = [method(0, "a", matched(0.5, 0.51)), method(1, "b", matched(0.6, 0.61))]
    assert text(methods).startswith(
        "Judged by the matching of identities, <strong>b</strong> is best on recall@1 from a to b "
        "(60.5 %, 10.0 points above the baseline) and recall@1 from b to a"
    )
    above = change(build_table(methods), methods[1]).above
    assert above == ("recall@1 from a to b +10.0", "recall@1 from b to a +10.0")


def test_accuracies_go_before_matching() -> None:
    both = {0: [*by_seed(0.6)[0], *matched(0.7)[0]]}
    assert text([method(0, "a", both)]).startswith("Judged by the 20 nearest neighbours, <strong>a</strong>")


def test_every_objective_has_a_sentence() -> None:
    assert report_objectives.keys() == OBJECTIVES.keys()


def test_objective_and_graph_in_words() -> None:
    given = {"objective": [{"name": "ntxent", "tau": 0.5}, {"name": "qare", "weight": 0.75}]}
    assert objective_of(method(0, "a", {0: []}, given)) == (
        "ntxent (tau 0.5) + 0.75 × qare",
        "Only the other view of the same picture counts as alike. "
        "The pictures of one view are to be spread out evenly.",
    )
    given = {"objective": [{"name": "other"}, {"name": "qare", "reference": "graph"}]}
    assert objective_of(method(0, "a", {0: []}, given)) == (
        "other + qare (reference graph)",
        "The spread of the pictures of one view is to be that of the similarity graph.",
    )
    assert objective_of(method(0, "a", {0: []})) == ("", "")
    given = {"objective": {"name": "mmcl", "sigma": 10.0, "solver": "exact", "ridge": 0.1, "C": None,
                           "kernel": "rbf", "symmetric": True, "schedule": {"sigma": {75: 5.0, 125: 1.0}}}
    }  # fmt: skip
    assert objective_of(method(0, "a", {0: []}, given))[0] == (
        "mmcl (sigma 10.0 → 5.0 from epoch 75 → 1.0 from epoch 125, solver exact, ridge 0.1, C none, "
        "symmetric true)"
    )
    given = {"objective": {"name": "xclr", "tau": 0.1, "tau_s": 0.1, "map": "sparsemax"}}
    assert objective_of(method(0, "a", {0: []}, given))[0] == "xclr (tau 0.1, tau_s 0.1, map sparsemax)"
    assert graph_of(method(0, "a", {0: []}, {"similarity": {"graph": "classes", "encoder": "minilm"}})) == (
        "classes, read by minilm"
    )
    of = [{"graph": "class"}, {"graph": "wordnet", "measure": "wup"}]
    given = {"similarity": {"graph": "sum", "of": of, "noise": 0.2}}
    said = "sum of class and wordnet (wup), with 20% of it shuffled"
    assert graph_of(method(0, "a", {0: []}, given)) == said
    given = {"graph": "metadata", "path": "data/mine.csv", "numbers": ["price"], "categories": ["colour"]}
    said = "metadata (price, colour), from mine.csv"
    assert graph_of(method(0, "a", {0: []}, {"similarity": given})) == said
    assert graph_of(method(0, "a", {0: []}, {"similarity": None})) == ""


def test_equal_to_every_printed_digit_is_marked_alike() -> None:
    methods = [
        method(0, "a", by_seed(0.5001)),
        method(1, "b", by_seed(0.5004)),
        method(2, "c", by_seed(0.49)),
    ]
    cells = next(iter(build_table(methods).cells.values()))
    assert [cells[index].best for index in range(3)] == [True, True, False]
    assert text(methods).endswith(
        "on object <strong>a</strong> and <strong>b</strong> have the same highest mean, 50.0 %."
    )
    apart = [*methods[:1], method(1, "b", by_seed(0.5012))]
    cells = next(iter(build_table(apart).cells.values()))
    assert [cells[index].best for index in range(2)] == [False, True]
