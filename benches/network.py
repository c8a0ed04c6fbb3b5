"""The figure of a slow network: a registry that holds each connection to a rate."""

import contextlib

from bed import rotated
from report import median, megabytes, spread, table
from source import registry

IMAGE = "web"
BYTES_PER_SECOND = 40_000_000
WHO = ("imagelet", "daemon", "background", "keeping", "containerd")


def slow(bench):
    """What 40 MB/s for each connection add to a pull of `web`."""
    layers = [layer["size"] for layer in bench.source.manifest(IMAGE)["layers"]]
    with contextlib.ExitStack() as parts:
        held = parts.enter_context(registry(bench.source.corpus, bench.source.drafts, rate=BYTES_PER_SECOND))
        chosen = [parts.enter_context(bench.started(who)) for who in WHO if who in bench.candidates]
        found = {candidate.name: {"free": [], "held": []} for candidate in chosen}
        for number in range((bench.pairs or 3) + 1):
            for candidate in rotated(chosen, number):
                for key, source in rotated((("free", bench.source), ("held", held)), number):
                    image = source.image(IMAGE)
                    wall = candidate.pull(image).wall
                    candidate.remove_and_wait(image)
                    candidate.settle()
                    bench.tell(f"slow {candidate.name} {key}: {wall:.3f} s")
                    if number > 0:
                        found[candidate.name][key].append(wall)
    rows = []
    for who, walls in found.items():
        free, slowed = median(walls["free"]), median(walls["held"])
        bench.keep("slow", who, {"free": free, "held": slowed, "more": slowed - free})
        rows.append([who, spread(walls["free"]), spread(walls["held"]), f"{slowed - free:+.2f}"])
    largest = max(layers)
    title = (
        f"slow: {IMAGE} at {BYTES_PER_SECOND / 1e6:.0f} MB/s a connection; its largest layer ({megabytes(largest)} MB) "
        f"takes one connection {largest / BYTES_PER_SECOND:.2f} s"
    )
    table(title, ["who", "not held, s", "held, s", "more, s"], rows)
