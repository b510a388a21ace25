"""What the tests of the command line share."""

TINY = (
    "data.count=96",
    "data.size=32",
    "views.size=24",
    "model.head=[16]",
    "train.batch_size=32",
    "train.epochs=1",
    "train.log_every=1",
    "evaluate.k=[1,5]",
    "evaluate.columns=[object]",
    "optim.warmup_epochs=0",
)


def refused(result, *parts):
    """One line on standard error, exit 2, and the parts are in it."""
    code, _, err = result
    assert code == 2, err
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    for part in parts:
        assert part in lines[0]
