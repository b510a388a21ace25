"""Runs in processes of their own that start in milliseconds, to be signalled and killed.

A nursery has torch imported and forks a child for each run. It computes nothing itself, since threads of
torch do not survive a fork. The pid of a run that ended stays taken until the next one begins, so that a
signal that comes too late reaches nothing, and nobody else.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path


class Nursery:
    """`with Nursery(folder) as nursery: pid = nursery.start(...); code = nursery.end()`"""

    def __init__(self, folder):
        self.output = Path(folder) / "output.txt"

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout.readline() == "ready\n"
        self._running = None
        return self

    def __exit__(self, *_):
        self._stop()
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def start(self, *words, largest_file=None):
        """Begin `counterpoint WORDS` or, where the first word is "fit", the training alone; gives its pid."""
        self._stop()
        request = {"words": [str(w) for w in words], "output": str(self.output), "largest_file": largest_file}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        self._running = self._told("pid")
        return self._running

    def end(self):
        """Wait for the run to end; its exit code, or minus the signal that killed it."""
        code = self._told("code")
        self._running = None
        return code

    def _told(self, word):
        kind, number = self._process.stdout.readline().split()
        assert kind == word  # a code taken for a pid would signal processes of others
        return int(number)

    def _stop(self):
        """End what a test that failed has left running."""
        if self._running is not None:
            os.kill(self._running, signal.SIGKILL)
            self.end()

    def said(self):
        """What the run printed."""
        return self.output.read_text()


def serve():
    import torch

    import counterpoint.cli
    import counterpoint.train.compare  # noqa: F401 (what a run imports)

    torch.set_num_threads(1)
    print("ready", flush=True)
    pid = None
    for line in sys.stdin:
        request = json.loads(line)
        if pid is not None:
            os.waitpid(pid, 0)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            child(request)
        os.setpgid(pid, pid)
        print("pid", pid, flush=True)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        killed = ended.si_code != os.CLD_EXITED
        print("code", -ended.si_status if killed else ended.si_status, flush=True)


def child(request):
    from counterpoint.cli import main

    file = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    if request["largest_file"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    code = 1
    try:
        if request["words"][0] == "fit":
            fit_alone(*request["words"][1:])
        else:
            sys.argv = ["counterpoint", *request["words"]]
            main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def fit_alone(recipe, folder, *words):
    from counterpoint.train.loop import fit
    from counterpoint.train.recipe import load_recipe

    fit(load_recipe(recipe, words), Path(folder), resume=True)


if __name__ == "__main__":
    serve()
