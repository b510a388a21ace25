"""What a recipe asks of its devices: refused by name where it cannot be, compiled where it can."""

import subprocess
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from short_runs import quiet
from torch._inductor import cpp_builder

from counterpoint.train import devices, loop
from counterpoint.train.checkpoint import checkpoints, load_checkpoint
from counterpoint.train.devices import (
    build_fabric,
    compile_encoder,
    load_whole_state,
    prepared,
    seed_step,
    whole_state,
)
from counterpoint.train.loop import fit
from counterpoint.train.recipe import parse_recipe
from counterpoint.train.setup import load_encoder


def recipe(**sections):
    train = {"epochs": 1, "batch_size": 16, "log_every": 1, "accelerator": "cpu"} | sections.pop("train", {})
    plain = {
        "name": "small",
        "data": {"source": "shapes", "count": 48, "size": 32},
        "views": {"preset": "simclr_small", "size": 16},
        "model": {"backbone": "conv4", "head": [8]},
        "objective": {"name": "ntxent"},
        "train": train,
    }
    return parse_recipe(plain | sections)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"strategy": "fsdp"}, "train.strategy='fsdp' needs CUDA GPUs, and with train.accelerator='cpu'"),
        ({"accelerator": "cuda", "devices": 64}, "train.accelerator='cuda' with train.devices=64 cannot be"),
        ({"nodes": 2}, "train.nodes=2: start the command on each machine with torchrun or srun, or set"),
    ],
)
def test_what_is_not_there_is_refused_by_name(train, words):
    with pytest.raises(ValueError, match=words):
        build_fabric(recipe(train=train).train)


def test_what_torchrun_started_is_what_the_recipe_asks_for(monkeypatch):
    started = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    for name, value in {**started, "TORCHELASTIC_RUN_ID": 1}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ValueError, match=r"^train.devices=3, but torchrun started 2$"):
        build_fabric(recipe(train={"devices": 3}).train)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"momentum": {"queue": 8}}, "momentum, whose encoder"),
        ({"optim": {"name": "lars"}}, "optim.name='lars'"),
        ({"objective": {"name": "clip", "learnable": True}}, "a learnable temperature"),
        ({"train": {"compile": True}}, "train.compile=true exclude"),
    ],
)
def test_fsdp_refuses_what_needs_whole_weights(sections, words):
    train = {"strategy": "fsdp"} | sections.pop("train", {})
    with pytest.raises(ValueError, match=words):
        recipe(train=train, **sections)


def test_on_a_gpu_random_numbers_are_those_of_the_step():
    """A checkpoint has no random state of a GPU, so that it must not be a state."""
    place = SimpleNamespace(world_size=1, global_rank=0, device=torch.device("cuda"))
    drawn = []
    for step in (4, 5, 4):
        torch.rand(step)  # whatever was drawn before
        seed_step(place, seed=1, step=step)
        drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    before = torch.get_rng_state()
    seed_step(SimpleNamespace(world_size=1, global_rank=0, device=torch.device("cpu")), seed=1, step=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_sync_batchnorm_is_for_gpus():
    wanted = recipe(train={"sync_batchnorm": True})
    with pytest.raises(ValueError, match=r"train.sync_batchnorm=true needs CUDA GPUs"):
        prepared(load_encoder(wanted), wanted, build_fabric(wanted.train))


def test_compile_without_a_compiler_is_refused_before_the_folder_is_touched(monkeypatch, tmp_path):
    def missing(command, *_, **__):
        raise FileNotFoundError(command)

    # What torch sees of a machine without one: no such command.
    monkeypatch.setattr(subprocess, "check_output", missing)
    cpp_builder.cpp_compiler_search.cache_clear()
    with pytest.raises(ValueError, match=r"train.compile=true needs a C\+\+ compiler on a CPU"):
        fit(recipe(train={"compile": True}), tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


class ShortAtTheEnd:
    """Batches of a source, the last of an epoch with nine samples."""

    def __init__(self, source):
        self.source, self.skipped, self.steps_per_epoch = source, source.skipped, source.steps_per_epoch

    def epoch(self, epoch, start=0):
        for step, batch in enumerate(self.source.epoch(epoch, start), start + 1):
            n = 9 if step == self.steps_per_epoch else len(batch.ids)
            yield replace(batch, ids=batch.ids[:n], views=[view[:n] for view in batch.views])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_run_takes_a_short_batch_as_it_is(monkeypatch, tmp_path, backend):
    load = loop.load_training

    def short(*arguments):
        training = load(*arguments)
        return replace(training, source=ShortAtTheEnd(training.source))

    monkeypatch.setattr(loop, "load_training", short)
    plain = fit(recipe(), tmp_path / "plain", console=quiet())
    monkeypatch.setattr(loop, "compile_encoder", partial(compile_encoder, backend=backend))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        run = fit(recipe(train={"compile": True}), tmp_path / "compiled", console=quiet())
    # One graph, for the batches of 32 pictures and that of 18.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    weights, same = (load_checkpoint(checkpoints(r.checkpoints)[-1])["encoder"] for r in (run, plain))
    assert weights.keys() == load_encoder(recipe()).state_dict().keys()
    for name in weights:
        torch.testing.assert_close(weights[name], same[name], rtol=1e-3, atol=1e-3)


def test_the_state_of_shards_is_loaded_as_it_was_saved(monkeypatch):
    """Of one process without shards: the names and the way back, not the putting together."""
    fabric = build_fabric(recipe().train)
    monkeypatch.setattr(devices, "FSDPStrategy", type(fabric.strategy))
    states = []
    for seed in range(2):
        encoder = load_encoder(recipe(seed=seed))
        names = encoder.state_dict().keys()
        buffers = {name for name, _ in encoder.named_buffers()}
        encoder, optimizer = fabric.setup(encoder, torch.optim.AdamW(encoder.parameters()))
        if states:
            load_whole_state(fabric, encoder, optimizer, *states[0])
        else:
            encoder(torch.randn(4, 3, 16, 16))[1].square().sum().backward()
            optimizer.step()
        states.append(whole_state(fabric, encoder, optimizer))
        assert states[-1][0].keys() == names
    (weights, moments), (same, same_moments) = states
    torch.testing.assert_close(weights, same, rtol=0, atol=0)
    # Told by their names, in whatever order.
    assert all(
        set(kept["param_groups"][0]["params"]) == weights.keys() - buffers for kept in (moments, same_moments)
    )
    torch.testing.assert_close(moments["state"], same_moments["state"], rtol=0, atol=0)
    assert all(float(kept["exp_avg"].abs().max()) > 0 for kept in moments["state"].values())
