import multiprocessing
import sys
import threading

import pytest
import torch

from counterpoint.data.cores import for_each


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_piece_is_done_once(threads):
    done = []
    for_each(done.append, range(50))
    assert sorted(done) == list(range(50))


def test_pieces_run_side_by_side_each_on_one_core(threads):
    together = threading.Barrier(threads)
    counts = []

    def piece(_):
        # breaks if the pieces come one after the other
        together.wait(timeout=10)
        counts.append(torch.get_num_threads())

    for_each(piece, range(threads))
    assert counts == [1] * threads


def test_a_single_piece_runs_on_one_core_too(threads):
    counts = []
    for_each(lambda _: counts.append(torch.get_num_threads()), [0])
    assert counts == [1]


def test_thread_counts_of_the_process_stay(threads):
    for_each(lambda i: None, range(8))
    found = [torch.get_num_threads()]
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [threads, threads]


def test_an_error_comes_through(threads):
    def piece(i):
        if i == 5:
            raise ValueError("piece 5")

    with pytest.raises(ValueError, match="piece 5"):
        for_each(piece, range(8))
    test_every_piece_is_done_once(threads)


def test_inference_mode_reaches_the_pieces(threads):
    with torch.inference_mode():
        out = torch.zeros(8)
        for_each(lambda i: out[i : i + 1].add_(i), range(8))
    assert out.tolist() == list(range(8))
    seen = []
    for_each(lambda i: seen.append(torch.is_inference_mode_enabled()), range(8))
    assert not any(seen)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_starts_its_own_threads(threads):
    for_each(lambda i: None, range(8))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child():
        done = []
        for_each(done.append, range(8))
        queue.put(sorted(done))

    process = context.Process(target=child)
    process.start()
    process.join(timeout=60)
    alive = process.is_alive()
    process.kill()
    assert not alive
    assert queue.get() == list(range(8))
