"""Short runs of an objective whose loss, or gradient alone, is not finite at some steps."""

from counterpoint.objectives import NTXent
from counterpoint.train.recipe import parse_recipe


class Sometimes(NTXent):
    """NT-Xent whose loss, or gradient alone, is not finite at some calls, counted from the first step."""

    bad: dict[int, str]
    calls = 0  # that of the rehearsal before a run

    def evaluate(self, views, known, with_log):
        loss, log = super().evaluate(views, known, with_log)
        kind = type(self).bad.get(type(self).calls)
        type(self).calls += 1
        if kind == "loss":
            loss = loss * float("nan")
        elif kind == "gradient":
            loss = loss + (0 * views[0]).sum().sqrt()  # 0, with a slope of infinity times 0
        return loss, log | ({"loss": loss} if with_log else {})


def recipe(objective="sometimes", optim=None, **train):
    plain = {"epochs": 4, "batch_size": 16, "log_every": 3, "save_every": 100, "accelerator": "cpu"}
    return parse_recipe(
        {
            "name": "small",
            "data": {"source": "shapes", "count": 48, "size": 32},
            "views": {"preset": "simclr_small", "size": 16},
            "model": {"backbone": "conv4", "head": [8]},
            "objective": objective,
            "optim": optim or {},
            "train": plain | train,
        }
    )
