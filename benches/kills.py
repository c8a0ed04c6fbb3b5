#!/usr/bin/env python3
"""Kills `imagelet pull` at random moments of one large layer, again and again, and counts what the registry has to send.

Usage: kills.py IMAGELET [--kills N] [--size BYTES] [--rate BYTES_PER_SECOND] [--seed N] [--folder DIR] [--minutes N]

Of a blob, fewer than 8 MiB are not kept: the first kill comes after 16. The registry sends at most `--rate` over all
connections, so that a connection more brings nothing and little is under way when a pull ends. After the kills the last pull
has to succeed, with at most 1 MiB a kill sent again. Then a pull is killed once more half-way, the last bytes on the disk are
overwritten, and the next pull has to notice.

Each pull hashes and unpacks again what is on the disk: 300 kills in 1 GiB are 150 GiB of that. `--folder` in memory (3 GiB)
spares the disk that. A run of more than `--minutes` fails.
"""

import argparse
import hashlib
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

import registry

NAME = "bench/kills"
PIECE = 64 << 10
AGAIN_MAX = 1 << 20
FIRST = 16 << 20
TAIL = 4096
MEDIA = "application/vnd.oci.image."


class Server(registry.Server):
    """Holds all connections together to a rate."""

    def __init__(self, folder, rate):
        self.total_rate, self.turn, self.free_at = rate, threading.Lock(), time.monotonic()
        settings = registry.read_arguments([str(folder)])
        super().__init__(settings)
        self.RequestHandlerClass = Handler

    def wait(self, size):
        with self.turn:
            self.free_at = max(self.free_at, time.monotonic()) + size / self.total_rate
            due = self.free_at
        time.sleep(max(0, due - time.monotonic()))


class Handler(registry.Handler):
    def send(self, source, start, end):
        while start < end:
            self.server.wait(min(PIECE, end - start))
            piece = os.sendfile(self.connection.fileno(), source.fileno(), start, min(PIECE, end - start))
            if piece == 0:
                raise ConnectionResetError
            start += piece
            self.server.count.sent(piece)


def put(folder, data):
    digest = hashlib.sha256(data).hexdigest()
    (folder / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    (folder / "blobs/sha256" / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def make_image(folder, size):
    """An image of one layer with one file of noise; returns the layer's descriptor."""
    archive, source = io.BytesIO(), random.Random(0)
    noise = b"".join(source.randbytes(min(1 << 20, size - start)) for start in range(0, size, 1 << 20))
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("noise")
        entry.size = size
        tar.addfile(entry, io.BytesIO(noise))
    layer = put(folder, archive.getvalue()) | {"mediaType": MEDIA + "layer.v1.tar"}
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    rootfs = {"type": "layers", "diff_ids": [layer["digest"]]}
    config = {"architecture": machine, "os": "linux", "rootfs": rootfs, "config": {}}
    described = put(folder, json.dumps(config).encode()) | {"mediaType": MEDIA + "config.v1+json"}
    manifest = {"schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json", "config": described, "layers": [layer]}
    place = folder / "v2" / NAME / "manifests"
    place.mkdir(parents=True)
    (place / "v1").write_text(json.dumps(manifest))
    return layer


class Pulls:
    def __init__(self, program, store, server):
        self.command = [program, "--store", store, "pull", "-q", "{}:{}/{}:v1".format(*server.server_address, NAME)]
        self.verify = [program, "--store", store, "verify"]
        self.server, self.store = server, store

    def killed_after(self, size):
        """Kills a pull after so many bytes more; `False`: it succeeded before."""
        goal = self.server.count.bytes + size
        with subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as pull:
            while self.server.count.bytes < goal and pull.poll() is None:
                time.sleep(0.001)
            pull.kill()
            error = pull.communicate()[1].decode()
        if pull.returncode > 0:
            sys.exit(f"a pull failed: {error}")
        return pull.returncode != 0

    def finish(self):
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(self.verify, check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imagelet", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--rate", type=float, default=32 << 20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=20)
    arguments = parser.parse_args()
    moments, began = random.Random(arguments.seed), time.monotonic()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        folder = pathlib.Path(folder)
        layer = make_image(folder / "image", arguments.size)
        server = Server(folder / "image", arguments.rate)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pulls, kills = Pulls(arguments.imagelet.absolute(), folder / "store", server), 0
        step = 1.6 * (arguments.size - FIRST) / arguments.kills
        while kills < arguments.kills and pulls.killed_after(moments.uniform(0, step) if kills else FIRST):
            kills += 1
            minutes = (time.monotonic() - began) / 60
            if kills % 50 == 0:
                print(f"{kills} kills after {minutes:.1f} minutes, {server.count.bytes >> 20} MiB sent", flush=True)
            if minutes > arguments.minutes:
                sys.exit(f"the goal is missed: {kills} kills took more than {arguments.minutes:g} minutes")
        pulls.finish()
        again = server.count.bytes - layer["size"]
        print(f"{kills} kills in {layer['size'] >> 20} MiB: {again / (1 << 20):.1f} MiB were sent again", flush=True)

        pulls, sent = Pulls(arguments.imagelet.absolute(), folder / "second", server), server.count.bytes
        pulls.killed_after(arguments.size // 2)
        partial = max((pulls.store / "ingest").iterdir(), key=lambda file: file.stat().st_size)
        with partial.open("r+b") as file:
            file.seek(-TAIL, os.SEEK_END)
            file.write(bytes(TAIL))
        pulls.finish()
        sent = server.count.bytes - sent
        print(f"after a changed tail {sent / (1 << 20):.1f} MiB were sent in all; {time.monotonic() - began:.0f} s")
        server.shutdown()
    missed = {
        f"only {kills} of {arguments.kills} kills": kills < arguments.kills,
        f"more than {kills * AGAIN_MAX >> 20} MiB were sent again": again > kills * AGAIN_MAX,
        "the changed tail was not found": sent <= layer["size"] * 1.4,
    }
    if any(missed.values()):
        sys.exit(f"the goal is missed: {', '.join(what for what, is_missed in missed.items() if is_missed)}")
    print("the goal is met")


if __name__ == "__main__":
    main()
