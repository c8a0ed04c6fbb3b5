"""Cold pulls: every candidate pulls the image onto a new file system, in turn, so many times."""

import bound
import candidates
from bed import rotated, used, written
from report import median, megabytes, spread, table

# Images whose pulls are compared with the bound of this machine.
BOUNDED = ("web", "many", "web-zstd", "ml")
HEAD = ["who", "wall s", "x", "x tuned", "CPU s", "x", "cores", "end s", "peak MB", "above idle", "MB fetched", "MB written", "x disk"]
# An image larger than this takes its time: fewer turns have to do.
LARGE_BYTES = 500 << 20


def measure(bench, image, who=None, pairs=None):
    """Pulls `image` by each in turn, and keeps the runs."""
    source, name = bench.source, bench.source.image(image)
    layers = source.manifest(image)["layers"]
    packed = sum(layer["size"] for layer in layers)
    pairs = pairs or bench.pairs or (3 if packed > LARGE_BYTES else 5)
    runs = {one: [] for one in who or bench.candidates if candidates.can_unpack(one, layers)}
    if not runs:
        return print(f"note: no candidate unpacks the layers of `{image}`")
    bound_seconds = bound.measure(bench, image) if image in BOUNDED else None
    # The first pull of each does not count: it warms the registry's files and the program.
    for number in range(pairs + 1):
        for one, found in rotated(runs.items(), number):
            # Where files were removed, a file system makes new ones more slowly for minutes: each run has a new one.
            with bench.started(one, bench.room(image)) as candidate:
                candidate.settle()
                source.forget()
                before = [measured(candidate.place) for measured in (written, used)]
                pull = candidate.pull(name)
                count = source.count()
                candidate.settle()
                disk = [measured(candidate.place) - old for measured, old in zip((written, used), before)]
            bench.tell(f"{image} {number}/{pairs} {one}: {pull.wall:.3f} s, {pull.cpu:.3f} s CPU")
            if number > 0:
                end = last_tenth(count, pull)
                found.append({**vars(pull), "fetched": count["bytes"], "written": disk[0], "x_written": disk[0] / disk[1], "end": end})
    return show(bench, image, packed, runs, bound_seconds)


def show(bench, image, packed, runs, bound_seconds):
    """Prints the medians, and keeps them."""
    values = {name: medians(pulls, bound_seconds) for name, pulls in runs.items()}
    theirs, tuned, rows = values.get("containerd"), values.get("tuned"), []
    for name, found in values.items():
        if theirs:
            found |= {f"x_{key}": found[key] / theirs[key] for key in ("wall", "cpu")}
        if tuned:
            found["x_tuned"] = found["wall"] / tuned["wall"]
        wall, to_tuned, cpu = (f"{found[key]:.2f}" if key in found else "-" for key in ("x_wall", "x_tuned", "x_cpu"))
        above = megabytes(found["above"]) if found["idle"] else "-"
        memory = [megabytes(found["peak"]), above, megabytes(found["fetched"])]
        disk = [megabytes(found["written"]), f"{found['x_written']:.2f}"]
        times = [f"{found['cpu']:.2f}", cpu, f"{found['cpu'] / found['wall']:.2f}", f"{found['end']:.2f}"]
        rows.append([name, spread([pull["wall"] for pull in runs[name]]), wall, to_tuned, *times, *memory, *disk])
        bench.keep(image, name, found)
    layers, turns = len(bench.source.manifest(image)["layers"]), len(next(iter(runs.values())))
    title = f"{image}: {layers} layers, {megabytes(packed)} MB; cold pull, {turns} in turn"
    table(title, HEAD, rows)
    bench.runs[image] = runs


def last_tenth(count, pull):
    """Seconds from when the registry had sent nine tenths to the end of the pull."""
    most = next((at for at, sent in count["moments"] if sent >= 0.9 * count["bytes"]), pull.ended)
    return pull.ended - most


def medians(pulls, bound_seconds):
    found = {key: median([pull[key] for pull in pulls]) for key in pulls[0]}
    found["above"] = median([pull["peak"] - pull["idle"] for pull in pulls])
    if bound_seconds:
        found["x_bound"] = found["wall"] / bound_seconds
    return found
