"""Cold pulls: every candidate pulls the image onto a new file system, in turn, so many times."""

from bed import rotated
from report import median, megabytes, spread, table

# The floor on the machine the goals were set on: CPU seconds of a single pass with the best parts, over two cores.
BOUND_SECONDS = {"web": 0.55, "ml": 5.4, "web-zstd": 0.45}
DISK_BYTES = 10 << 30
# An image larger than this takes its time: fewer turns have to do.
LARGE_BYTES = 500 << 20


def measure(bench, image, who=None, pairs=None):
    """Pulls `image` by each in turn, and keeps the runs."""
    source, name = bench.source, bench.source.image(image)
    packed = sum(layer["size"] for layer in source.manifest(image)["layers"])
    pairs = pairs or bench.pairs or (3 if packed > LARGE_BYTES else 5)
    runs = {one: [] for one in who or bench.candidates}
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
    show(bench, image, packed, runs)


def show(bench, image, packed, runs):
    """Prints the medians, and keeps them."""
    values = {name: medians(pulls, image) for name, pulls in runs.items()}
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


def medians(pulls, image):
    found = {key: median([pull[key] for pull in pulls]) for key in pulls[0]}
    found["above"] = median([pull["peak"] - pull["idle"] for pull in pulls])
    if image in BOUND_SECONDS:
        found["x_bound"] = found["wall"] / BOUND_SECONDS[image]
    return found
