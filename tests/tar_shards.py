"""Shards in the form of img2dataset, made of the built-in pictures, and a web server that has its moods."""

import contextlib
import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from counterpoint.data.shapes import shapes


def write_shards(folder, shards=3, each=8, size=16, texts=1, name="made"):
    """Tars `made-00000.tar`, ... with KEY.png, KEY.txt and KEY.json; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = shapes("train", count=shards * each, size=size)
    paths = []
    for shard in range(shards):
        path = folder / f"{name}-{shard:05d}.tar"
        with tarfile.open(path, "w") as tar:
            for i in range(shard * each, (shard + 1) * each):
                picture = io.BytesIO()
                samples.picture(i).save(picture, "png")
                captions = [samples.captions[i]] + [
                    f"{samples.captions[i]}, told {k}" for k in range(1, texts)
                ]
                parts = {
                    "png": picture.getvalue(),
                    "txt": captions[0].encode(),
                    "json": json.dumps({"caption": captions[0], "captions": captions}).encode(),
                }
                for ending, data in parts.items():
                    add(tar, f"{i:09d}.{ending}", data)
        paths.append(path)
    return paths


def add(tar, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


@contextlib.contextmanager
def server(folder, moods=None):
    """Serves the files of a folder; gives the address, and the names asked for, in order.

    moods: by file name, one mood per request: "well", "dies" (stops half-way), "hangs" (sends a little and
        then nothing), "gone" (404), "busy" (503). The last one lasts.
    """
    asked = []
    moods = {name: list(queue) for name, queue in (moods or {}).items()}
    lock = threading.Lock()
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.strip("/")
            with lock:
                asked.append(name)
                queue = moods.get(name, ["well"])
                mood = queue.pop(0) if len(queue) > 1 else queue[0]
            if mood in ("gone", "busy"):
                self.send_error(404 if mood == "gone" else 503)
                return
            data = (folder / name).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data if mood == "well" else data[: len(data) // 2])
            self.wfile.flush()
            if mood == "hangs":
                closing.wait(10)

        def log_message(self, *words):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}", asked
    finally:
        closing.set()
        made.shutdown()
        made.server_close()
        thread.join()
