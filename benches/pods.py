"""The figure of a pod's start: what a kubelet asks for, from the first look for the image to the running container."""

import contextlib
import time

import cri
from bed import rotated
from report import median, spread, table

IMAGE = "web"
WHO = ("imported", "forwarded", "containerd", "tuned")
COMMAND = ("/bin/sleep", "1000000")


def podstart(bench):
    """From a kubelet's first call for a pod to its running container, the image absent."""
    name = bench.source.image(IMAGE)
    runs = {who: [] for who in WHO if who in bench.candidates}
    for turn in range((bench.pairs or 5) + 1):
        for who, found in rotated(runs.items(), turn):
            with bench.started(who, bench.room(IMAGE)) as candidate:
                # Every node has the sandbox image, by the runtime's own pull.
                with cri.Connection(candidate.pods) as runtime:
                    runtime.pull(bench.pause)
                candidate.settle()
                seconds = start(candidate, name)
            bench.tell(f"podstart {turn} {who}: " + ", ".join(f"{key} {value:.3f} s" for key, value in seconds.items()))
            if turn > 0:
                found.append(seconds)
    rows = []
    for who, found in runs.items():
        values = {key: median([one[key] for one in found]) for key in found[0]}
        for key, other in (("x_wall", "containerd"), ("x_tuned", "tuned")):
            if other in runs:
                values[key] = values["wall"] / median([one["wall"] for one in runs[other]])
        bench.keep("podstart", who, values)
        ratios = [f"{values[key]:.2f}" if key in values else "-" for key in ("x_wall", "x_tuned")]
        rows.append([who, spread([one["wall"] for one in found]), *ratios, *(f"{values[key]:.2f}" for key in ("cpu", "pull", "run"))])
    table(f"podstart: a pod of {IMAGE}, its image absent", ["who", "wall s", "x", "x tuned", "CPU s", "pull s", "the rest s"], rows)


def start(candidate, name):
    """Seconds of the whole, of the pull in it, and of the rest; CPU of imagelet and containerd."""
    with contextlib.ExitStack() as parts:
        images, pods = parts.enter_context(candidate.calls()), parts.enter_context(cri.Connection(candidate.pods))
        cpu, begun = candidate.cpu(), time.monotonic()
        assert not images.status(name)
        images.pull(name)
        pulled = time.monotonic()
        sandbox = pods.run_sandbox("web", candidate.place)
        parts.callback(pods.remove_sandbox, sandbox[0])
        pods.start_container(pods.create_container(sandbox, name, COMMAND))
        ended, cpu = time.monotonic(), candidate.cpu() - cpu
    return {"wall": ended - begun, "pull": pulled - begun, "run": ended - pulled, "cpu": cpu}
