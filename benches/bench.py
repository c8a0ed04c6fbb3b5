#!/usr/bin/env python3
"""Measures imagelet against what else pulls images, and says which goals are met.

Usage: bench.py [FIGURE...] [--pairs N] [--candidates A,B] [--corpus DIR] ...

Figures: the images small, web, many, web-zstd, ml, ml-zstd, eight, ai (cold pulls), and the rest, see `--help`. Without one: all but
ml, ml-zstd, eight and ai. Needs root and the Debian packages containerd, runc, skopeo, umoci, isal. docs/performance.md explains.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import time

import artifact
import between
import candidates
import corpus
import crowd
import full
import goals
import layers
import network
import node
import partial
import pods
import pulls
import report
import slow_disk
from bed import MEMORY, Failed, folder
from source import registry

DISK_BYTES = 4 << 30
ROOM_BYTES = 2 << 30
IMAGES = ("small", "web", "many", "web-zstd", "ml", "ml-zstd", "eight", "ai")
FUNCTIONS = (pods.podstart, node.rss, node.idle, layers.present, layers.stacking, between.between, node.together, crowd.callers, full.full, network.slow, network.distant, slow_disk.slow_disk, partial.partial, artifact.artifact)
FIGURES = {function.__name__: function for function in FUNCTIONS}
# What a figure pulls, beside what it makes itself.
NEEDS = {"podstart": "web", "rss": "web", "present": "web", "stacking": "web", "together": "web", "slow": "web", "distant": "web", "slow_disk": "web", "partial": "web"}
DEFAULT = ("small", "web", "many", "web-zstd", *FIGURES)


class Bench:
    """What the figures share: the place, the registry, who is measured, and what was found."""

    def __init__(self, arguments, place, source, chosen):
        self.place, self.source, self.candidates = place, source, chosen
        self.program, self.pairs = arguments.imagelet, arguments.pairs
        self.programs, self.pause = (arguments.imagelet, arguments.containerd), source.pause()
        self.images, self.full = arguments.images, arguments.full
        self.quiet, self.values, self.runs = arguments.quiet, {}, {}

    def room(self, image):
        """Bytes of a disk for one pull of the image; some candidates keep it packed, too. On a larger disk, fewer pages are used again."""
        return ROOM_BYTES + 4 * sum(layer["size"] for layer in self.source.manifest(image)["layers"])

    def started(self, who, disk_bytes=DISK_BYTES):
        return candidates.started(who, self.place, self.programs, self.pause, disk_bytes)

    def started_behind(self, who):
        """A runtime, and imagelet between it and its callers."""
        return candidates.started_behind(who, self.place, self.programs, self.pause, DISK_BYTES)

    def keep(self, figure, who, found):
        self.values.setdefault(figure, {}).setdefault(who, {}).update(found)

    def tell(self, text):
        if not self.quiet:
            print(f"  {text}", file=sys.stderr, flush=True)


def read():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lines = "; ".join(f"{name}: {figure.__doc__.splitlines()[0].rstrip('.')}" for name, figure in FIGURES.items())
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"{', '.join(IMAGES)}: cold pulls; {lines}")
    target = pathlib.Path(__file__).resolve().parent.parent / "target"
    parser.add_argument("--imagelet", type=pathlib.Path, default=target / "dist/imagelet", help="the program")
    unpacked = target / "parts/containerd-2.1/usr/bin/containerd"
    containerd = str(unpacked) if unpacked.is_file() else "containerd"
    parser.add_argument("--containerd", default=containerd, help=f"the program; its shim lies beside it (default {containerd})")
    parser.add_argument("--work", type=pathlib.Path, default=target / "bench", help="where the corpus is built and kept")
    parser.add_argument("--corpus", type=pathlib.Path, help="a corpus that is there already")
    parser.add_argument("--place", type=pathlib.Path, default=MEMORY, help=f"where the candidates' file systems lie (default {MEMORY})")
    parser.add_argument("--pairs", type=int, help="runs of each candidate, in turn (default 5; 3 for ml)")
    parser.add_argument("--candidates", default=",".join(candidates.DEFAULT), help=f"of {', '.join(candidates.NAMES)}")
    parser.add_argument("--images", type=int, default=500, help="images on the node for `idle` and `callers`")
    parser.add_argument("--full", type=int, default=10_000, help="images on the node for `full`")
    parser.add_argument("--json", type=pathlib.Path, help="where the results are written (default WORK/results.json)")
    parser.add_argument("--quiet", action="store_true", help="no line for each run")
    parser.add_argument("--unjudged", action="store_true", help="a missed goal is no failure; a figure or candidate that is missing is one")
    arguments = parser.parse_args()
    wants_ml = os.environ.get("BENCH_ML", "0") not in ("", "0")
    arguments.figures = arguments.figures or [*(["ml"] if wants_ml else []), *DEFAULT]
    for figure in arguments.figures:
        if figure not in IMAGES and figure not in FIGURES:
            parser.error(f"no figure `{figure}`; there are {', '.join([*IMAGES, *FIGURES])}")
    arguments.candidates = arguments.candidates.split(",")
    for who in arguments.candidates:
        if who not in candidates.NAMES:
            parser.error(f"no candidate `{who}`; there are {', '.join(candidates.NAMES)}")
    arguments.imagelet = arguments.imagelet.resolve()
    if not arguments.imagelet.is_file():
        parser.error(f"`{arguments.imagelet}` is not there: build it with `cargo build --profile dist`")
    arguments.place = arguments.place.resolve()
    if not arguments.place.is_dir():
        parser.error(f"`{arguments.place}` is no folder")
    if os.geteuid() != 0:
        parser.error("file systems are mounted and containerd is started: run it as root")
    return arguments


def measure(arguments, place):
    images = {NEEDS.get(figure, figure) for figure in arguments.figures}
    source = corpus.ready(arguments.corpus, arguments.work, [image for image in IMAGES if image in images])
    if candidates.is_first(arguments.containerd):
        print("note: containerd 1.x has nothing to tune, and no goals: `tuned` is left out")
        arguments.candidates = [who for who in arguments.candidates if who != "tuned"]
    chosen = [who for who in arguments.candidates if candidates.knows(arguments.imagelet, place, who)]
    for who in set(arguments.candidates).difference(chosen):
        if arguments.unjudged:
            raise Failed(f"this imagelet does not accept the settings of `{who}`")
        print(f"note: this imagelet has no such setting: `{who}` is left out")
    with registry(source, place / "drafts") as served:
        bench = Bench(arguments, place, served, chosen)
        for figure in arguments.figures:
            if figure in IMAGES:
                pulls.measure(bench, figure)
            else:
                FIGURES[figure](bench)
    return bench


def main():
    arguments = read()
    machine = report.machine(arguments.containerd, arguments.place)
    report.show_machine(machine)
    started = time.monotonic()
    with folder(arguments.place) as place:
        bench = measure(arguments, place)
    if absent := [figure for figure in arguments.figures if not bench.values.get(figure)]:
        raise Failed(f"no values of {', '.join(absent)}")
    verdicts = goals.judge(bench.values, machine["containerd"])
    found = {"machine": machine, "values": bench.values, "goals": verdicts, "runs": bench.runs}
    file = arguments.json or arguments.work / "results.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\n{time.monotonic() - started:.0f} s; written to {file}")
    return None if arguments.unjudged else exit_status(verdicts)


def exit_status(verdicts):
    """What `sys.exit` takes: `None` where all goals are met."""
    count = goals.missed(verdicts)
    return f"error: {count} of {len(verdicts)} goals missed" if count else None


if __name__ == "__main__":
    # A signal takes down what was put up, as an error does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by a signal"))
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"error: {error}")
