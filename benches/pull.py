#!/usr/bin/env python3
"""Measures a pull of the image `web`: imagelet's embedded store against containerd's CRI plug-in, in turn.

Usage: pull.py --imagelet PROGRAM --work DIR [--runs N] [--json FILE]

Both pull from one docker-registry on loopback, each onto an ext4 file system of its own on a loop device over memory. The
same program asks both: `imagelet --store` pulls itself, `imagelet --endpoint` lets containerd pull. One pull of each is
thrown away; between two pulls the image is removed and everything under it is gone. Needs root and the packages
containerd, runc, docker-registry. Prints each run, the medians and their ratio; the last line of stdout is JSON.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

import corpus

DISK_BYTES = 4 << 30
READY_SECONDS = 60


def wait_until(what, ready):
    end = time.monotonic() + READY_SECONDS
    while not ready():
        if time.monotonic() > end:
            sys.exit(f"waited {READY_SECONDS} s for {what}")
        time.sleep(0.02)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def disk(folder, name):
    """An ext4 file system on a loop device over memory; answers where it is mounted."""
    image, mountpoint = folder / f"{name}.img", folder / name
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "nodiscard", image], check=True)
    mountpoint.mkdir()
    subprocess.run(["mount", "-o", "loop", image, mountpoint], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run(["umount", "-l", mountpoint], check=False)
        image.unlink()


@contextlib.contextmanager
def part(command, log):
    """A process of ours, ended at the end by its id."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def registry(folder):
    """docker-registry over the folder; answers its address."""
    port = free_port()
    config = folder / "registry.yml"
    config.write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/registry}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"
    )

    def answers():
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    with part(["docker-registry", "serve", config], folder / "registry.log"):
        wait_until("docker-registry", answers)
        yield f"127.0.0.1:{port}"


def push(address, source, name, tag):
    """Pushes the corpus; answers the full name."""
    connection = http.client.HTTPConnection(address)

    def ask(method, path, body=b"", media_type="application/octet-stream"):
        connection.request(method, path, body, {"Content-Type": media_type})
        answer = connection.getresponse()
        answer.read()
        if answer.status not in (201, 202):
            sys.exit(f"push: {method} {path}: {answer.status}")
        return answer

    manifest = (source / "manifest.json").read_bytes()
    parsed = json.loads(manifest)
    for blob in [parsed["config"], *parsed["layers"]]:
        location = urllib.parse.urlsplit(ask("POST", f"/v2/{name}/blobs/uploads/").headers["Location"])
        content = (source / "blobs" / blob["digest"].removeprefix("sha256:")).read_bytes()
        ask("PUT", f"{location.path}?{location.query}&digest={blob['digest']}", content)
    ask("PUT", f"/v2/{name}/manifests/{tag}", manifest, parsed["mediaType"])
    return f"{address}/{name}:{tag}"


class Embedded:
    """imagelet with its own store, no daemon."""

    name = "imagelet"

    def __init__(self, program, folder):
        self.command = [program, "--store", folder / "store"]

    def gone(self):
        return not subprocess.run([*self.command, "ls", "-q"], check=True, capture_output=True).stdout

    def cpu(self):
        used = os.times()
        return used.children_user + used.children_system


class Containerd:
    """containerd, asked through CRI by imagelet as its client."""

    name = "containerd"

    def __init__(self, program, folder, process):
        self.socket, self.process = folder / "containerd.sock", process
        self.command = [program, "--endpoint", f"unix://{self.socket}"]

    def gone(self):
        listed = [
            subprocess.run(["ctr", "-a", self.socket, "-n", "k8s.io", what, "ls", "-q"], check=True, capture_output=True).stdout
            for what in ("images", "content")
        ]
        snapshots = ["ctr", "-a", self.socket, "-n", "k8s.io", "snapshots", "ls"]
        listed.append(subprocess.run(snapshots, check=True, capture_output=True).stdout.partition(b"\n")[2])
        return not any(text.strip() for text in listed)

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def containerd(program, folder, address, log):
    config = folder / "config.toml"
    config.write_text(
        f"""version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."{address}"]
  endpoint = ["http://{address}"]
"""
    )
    with part(["containerd", "-c", config], log) as process:
        candidate = Containerd(program, folder, process)
        ready = ["ctr", "-a", candidate.socket, "version"]
        wait_until("containerd", lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0)
        yield candidate


def pull(candidate, image):
    """One cold pull; answers its seconds of wall clock and of CPU."""
    os.sync()
    cpu, started = candidate.cpu(), time.monotonic()
    done = subprocess.run([*candidate.command, "pull", image], capture_output=True, text=True, check=False)
    wall = time.monotonic() - started
    cpu = candidate.cpu() - cpu
    if done.returncode != 0:
        sys.exit(f"{candidate.name}: {done.stderr}")
    subprocess.run([*candidate.command, "rm", image], check=True, capture_output=True)
    wait_until(f"{candidate.name} to let the image go", candidate.gone)
    return {"wall": wall, "cpu": cpu}


def measure(candidates, image, runs):
    for candidate in candidates:
        pull(candidate, image)
    found = {candidate.name: [] for candidate in candidates}
    for run in range(1, runs + 1):
        for candidate in candidates:
            one = pull(candidate, image)
            found[candidate.name].append(one)
            print(f"run {run}  {candidate.name:<10}  {one['wall']:6.3f} s  {one['cpu']:6.2f} s CPU", flush=True)
    return found


def summary(found):
    medians = {
        name: {key: round(statistics.median(one[key] for one in runs), 3) for key in ("wall", "cpu")}
        for name, runs in found.items()
    }
    for name, one in medians.items():
        print(f"median {name:<10}  {one['wall']:6.3f} s  {one['cpu']:6.2f} s CPU")
    ratio = {key: round(medians["imagelet"][key] / medians["containerd"][key], 3) for key in ("wall", "cpu")}
    print(f"imagelet / containerd: {ratio['wall']:.2f} of the wall clock, {ratio['cpu']:.2f} of the CPU")
    return {"image": "web", "medians": medians, "ratio": ratio, "runs": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imagelet", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the benchmark mounts file systems and starts containerd: run it as root")
    program, source = arguments.imagelet.resolve(), arguments.work.resolve() / "web"
    if not program.is_file():
        sys.exit(f"`{program}` is not there: build it with `cargo build --release`")
    corpus.build(source)

    folder = pathlib.Path(tempfile.mkdtemp(prefix="imagelet-bench-", dir="/dev/shm"))
    try:
        with contextlib.ExitStack() as parts:
            address = parts.enter_context(registry(folder))
            image = push(address, source, "perf/web", "v1")
            ours = Embedded(program, parts.enter_context(disk(folder, "ours")))
            theirs = parts.enter_context(disk(folder, "theirs"))
            theirs = parts.enter_context(containerd(program, theirs, address, folder / "containerd.log"))
            report = summary(measure([ours, theirs], image, arguments.runs))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(report)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
