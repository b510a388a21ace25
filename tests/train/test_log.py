import io

import pytest
from rich.console import Console

from counterpoint.train.log import COLUMNS, Bar, MetricsLog, read_metrics


def test_rows_come_back(tmp_path):
    log = MetricsLog(tmp_path / "metrics.csv")
    log.write({"step": 20, "epoch": 1, "loss": 1.25, "lr": 1e-3, "unknown": 4.0})
    log.write({"step": 40, "epoch": 2, "loss": 0.5, "kl": None})
    rows = read_metrics(tmp_path / "metrics.csv")
    assert list(rows[0]) == list(COLUMNS)
    assert [row["loss"] for row in rows] == [1.25, 0.5]
    assert rows[0]["lr"] == 1e-3
    assert rows[1]["kl"] is None


def test_resuming_drops_rows_past_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.csv"
    first = MetricsLog(path)
    for step in (20, 40, 60):
        first.write({"step": step, "loss": step / 10})
    again = MetricsLog(path, after=40)
    again.write({"step": 60, "loss": 9.0})
    assert [(row["step"], row["loss"]) for row in read_metrics(path)] == [(20, 2.0), (40, 4.0), (60, 9.0)]


def test_columns_of_the_objective_stand_after_the_common_ones(tmp_path):
    path = tmp_path / "metrics.csv"
    MetricsLog(path).write({"step": 20, "loss": 1.0})
    # A run that an older version began goes on with the new columns, empty where nothing was known.
    log = MetricsLog(path, after=20, also=("loss", "sigma", "gap"))
    log.write({"step": 40, "loss": 0.5, "gap": 1e-5, "sigma": 50.0, "other": 1.0})
    rows = read_metrics(path)
    assert list(rows[0]) == [*COLUMNS, "sigma", "gap"]
    assert [(row["sigma"], row["gap"]) for row in rows] == [(None, None), (50.0, 1e-5)]


@pytest.mark.parametrize("damage", ["step,loss\n1,word\n", "step,loss\n1,2,3\n", "a,b\n1,2\n"])
def test_a_damaged_log_is_named(tmp_path, damage):
    (tmp_path / "metrics.csv").write_text(damage)
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged"):
        read_metrics(tmp_path / "metrics.csv")


def test_tensorboard_gets_the_same_numbers(tmp_path):
    log = MetricsLog(tmp_path / "metrics.csv", tensorboard=tmp_path / "events")
    log.write({"step": 20, "loss": 1.25})
    log.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(20, 1.25)]


def test_the_bar_is_one_line_an_epoch_without_a_terminal():
    text = io.StringIO()
    bar = Bar(Console(file=text, force_terminal=False), "xclr seed 0", total=10)
    for _ in range(5):
        bar.step()
    bar.show(1.5, 1234.0)
    bar.epoch(1, 2, 1.5, 1234.0, left=3.0)
    bar.close()
    assert text.getvalue().strip() == "xclr seed 0: epoch 1/2, loss 1.500, 1,234 images/s, 3 s left"


def test_the_bar_shows_loss_rate_and_time_left_on_a_terminal():
    text = io.StringIO()
    bar = Bar(Console(file=text, force_terminal=True, width=120), "xclr", total=10)
    bar.step()
    bar.show(1.5, 1234.0)
    bar.close()
    assert "loss 1.500" in text.getvalue()
    assert "1,234 images/s" in text.getvalue()
    assert "left" in text.getvalue()
