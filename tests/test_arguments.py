import pytest

from counterpoint.arguments import arguments, choose


def crop(path: str, size: int = 32, share: float = 0.5, names: list[str] | None = None) -> None: ...


class Loss:
    def __init__(self, tau: float = 0.1, reduction: str = "mean") -> None: ...


def test_defaults_are_filled_in():
    assert arguments(crop, {"path": "a"}, "data") == {"path": "a", "size": 32, "share": 0.5, "names": None}
    assert arguments(Loss, {"tau": 1}, "objective") == {"tau": 1.0, "reduction": "mean"}


def test_arguments_of_the_caller_are_left_out():
    assert "size" not in arguments(crop, {"path": "a"}, "data", leave_out=("size",))
    with pytest.raises(ValueError, match=r"data\.size is not a key"):
        arguments(crop, {"path": "a", "size": 3}, "data", leave_out=("size",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"data\.path is missing"),
        (
            {"path": "a", "sise": 3},
            r"data\.sise is not a key of the recipe: there are path, .*; did you mean 'size'\?",
        ),
        ({"path": "a", "zzz": 3}, r"there are path, size, share, names"),
        ({"path": "a", "size": "big"}, r"data\.size: .*integer.*got 'big'"),
        ({"path": "a", "names": 3}, r"data\.names: .*got 3"),
    ],
)
def test_faults_name_the_key_the_value_and_what_is_allowed(given, message):
    with pytest.raises(ValueError, match=message):
        arguments(crop, given, "data")


def test_choose_names_the_nearest():
    assert choose("objective", "xclr", {"xclr": 1}) == 1
    with pytest.raises(ValueError, match=r"'xlcr': there are xclr, supcon; did you mean 'xclr'\?"):
        choose("objective", "xlcr", {"xclr": 1, "supcon": 2})
