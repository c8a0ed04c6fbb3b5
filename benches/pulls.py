"""Cold pulls: every candidate pulls the image onto a new file system, in turn, so many times."""

import bound
import candidates
from bed import rotated
from report import median, megabytes, spread, table

# Images whose pulls are compared with the bound of this machine.
BOUNDED = ("web", "web-zstd", "ml")
DISK_BYTES = 10 << 30
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
            with bench.started(one, DISK_BYTES) as candidate:
                candidate.settle()
                source.forget()
                pull = candidate.pull(name)
                fetched = source.count()["bytes"]
            bench.tell(f"{image} {number}/{pairs} {one}: {pull.wall:.3f} s, {pull.cpu:.3f} s CPU")
            if number > 0:
                found.append({**vars(pull), "fetched": fetched})
    return show(bench, image, packed, runs, bound_seconds)


def show(bench, image, packed, runs, bound_seconds):
    """Prints the medians, and keeps them."""
    values = {name: medians(pulls, bound_seconds) for name, pulls in runs.items()}
    theirs, rows = values.get("containerd"), []
    for name, found in values.items():
        if theirs:
            found |= {f"x_{key}": found[key] / theirs[key] for key in ("wall", "cpu")}
        ratios = [f"{found[key]:.2f}" if key in found else "-" for key in ("x_wall", "x_cpu")]
        wall = spread([pull["wall"] for pull in runs[name]])
        above = megabytes(found["above"]) if found["idle"] else "-"
        memory = [megabytes(found["peak"]), above, megabytes(found["fetched"])]
        rows.append([name, wall, ratios[0], f"{found['cpu']:.2f}", ratios[1], *memory])
        bench.keep(image, name, found)
    layers, turns = len(bench.source.manifest(image)["layers"]), len(next(iter(runs.values())))
    title = f"{image}: {layers} layers, {megabytes(packed)} MB; cold pull, {turns} in turn"
    table(title, ["who", "wall s", "x", "CPU s", "x", "peak MB", "above idle", "MB fetched"], rows)
    bench.runs[image] = runs


def medians(pulls, bound_seconds):
    found = {key: median([pull[key] for pull in pulls]) for key in pulls[0]}
    found["above"] = median([pull["peak"] - pull["idle"] for pull in pulls])
    if bound_seconds:
        found["x_bound"] = found["wall"] / bound_seconds
    return found
