from counterpoint.names import hint

THOUSAND = [f"class {i}" for i in range(1000)]


def test_a_thousand_names_are_not_listed():
    assert hint("class 7x", THOUSAND) == "did you mean 'class 7'?"
    assert hint("zebra", THOUSAND).endswith("class 19 and 980 more")


def test_few_names_are_all_told():
    assert hint("tset", ["train", "test"]) == "there are train, test; did you mean 'test'?"
    assert hint("zebra", ["train", "test"]) == "there are train, test"
