"""The figure of a daemon between a kubelet and a runtime: what it adds to a pull and to a removal of a small image."""

import contextlib
import time

import candidates
import cri
from report import median, spread, table

WHO = ("containerd", "crio")
WAYS = ("alone", "through")
TIMES = 20


def between(bench):
    """What PullImage and RemoveImage of a small image take longer through imagelet, which forwards."""
    layer, diff_id = bench.source.tiny_layer()
    images = [bench.source.publish("tiny", f"v{number}", [layer], [diff_id]) for number in range(2 * (TIMES + 1))]
    rows = []
    for who in WHO:
        if not candidates.is_installed(who):
            continue
        found = {way: {"pull": [], "remove": []} for way in WAYS}
        with bench.started_behind(who) as (runtime, daemon):
            sockets = dict(zip(WAYS, (runtime.socket, daemon.socket)))
            with contextlib.ExitStack() as parts:
                connections = {way: parts.enter_context(cri.Connection(path)) for way, path in sockets.items()}
                # The first of each warms up what is read and connected once.
                for number, image in enumerate(images):
                    way = WAYS[number % 2]
                    seconds = turn(runtime, connections[way], image)
                    if number >= len(WAYS):
                        for call, one in seconds.items():
                            found[way][call].append(one)
        for call in ("pull", "remove"):
            alone, through = (median(found[way][call]) for way in WAYS)
            values = {"alone": alone, "through": through, "added": through - alone}
            bench.keep("between", "forwarded", {f"{who}_{call}_{key}": value for key, value in values.items()})
            cells = (spread([one * 1e3 for one in found[way][call]], 1) for way in WAYS)
            rows.append([f"{who}, {call}", *cells, f"{(through - alone) * 1e3:.1f}"])
    table(f"between: {TIMES} small images by turns", ["what", "the runtime alone, ms", "through imagelet, ms", "added, ms"], rows)


def turn(runtime, connection, image):
    """Seconds of a pull and of the removal behind it, each on a disk that has nothing else to write."""
    runtime.settle()
    begun = time.monotonic()
    connection.pull(image)
    pulled = time.monotonic() - begun
    runtime.settle()
    begun = time.monotonic()
    connection.remove(image)
    removed = time.monotonic() - begun
    return {"pull": pulled, "remove": removed}
