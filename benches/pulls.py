"""Cold pulls: every candidate pulls the image onto an empty store, in turn, so many times."""

import contextlib

from report import median, megabytes, spread, table

# The floor on the machine the goals were set on: CPU seconds of a single pass with the best parts, over two cores.
BOUND_SECONDS = {"web": 0.55, "ml": 5.4, "web-zstd": 0.45}
DISK_BYTES = 10 << 30
# An image larger than this leaves more behind in the memory under the disk than several disks may keep.
TRIM_BYTES = 500 << 20


def measure(bench, image):
    """Pulls `image` in pairs; answers the runs of each candidate."""
    source, name = bench.source, bench.source.image(image)
    packed = sum(layer["size"] for layer in source.manifest(image)["layers"])
    pairs = bench.pairs or (3 if packed > TRIM_BYTES else 5)
    with contextlib.ExitStack() as parts:
        chosen = [parts.enter_context(bench.started(who, DISK_BYTES)) for who in bench.candidates]
        runs = {candidate.name: [] for candidate in chosen}
        # The first pull of each does not count: it warms the registry's files, the program and the disk.
        for number in range(pairs + 1):
            for candidate in chosen:
                source.forget()
                pull = candidate.pull(name)
                fetched = source.count()["bytes"]
                candidate.remove_and_wait(name)
                if packed > TRIM_BYTES:
                    candidate.trim()
                candidate.settle()
                bench.tell(f"{image} {number}/{pairs} {candidate.name}: {pull.wall:.3f} s, {pull.cpu:.3f} s CPU")
                if number > 0:
                    runs[candidate.name].append({**vars(pull), "fetched": fetched})
    show(bench, image, packed, runs)


def show(bench, image, packed, runs):
    """Prints the medians, and keeps them."""
    values, rows = {}, []
    for name, pulls in runs.items():
        of = {key: [pull[key] for pull in pulls] for key in pulls[0]}
        values[name] = {key: median(numbers) for key, numbers in of.items()}
        values[name]["above"] = median([pull["peak"] - pull["idle"] for pull in pulls])
        if image in BOUND_SECONDS:
            values[name]["x_bound"] = values[name]["wall"] / BOUND_SECONDS[image]
        rows.append([name, spread(of["wall"]), "", f"{values[name]['cpu']:.2f}", "", megabytes(values[name]["peak"])])
        rows[-1] += [megabytes(values[name]["above"]) if pulls[0]["idle"] else "-", megabytes(values[name]["fetched"])]
    for row, name in zip(rows, runs):
        if "containerd" in values:
            for key, column in (("wall", 2), ("cpu", 4)):
                values[name][f"x_{key}"] = values[name][key] / values["containerd"][key]
                row[column] = f"{values[name][f'x_{key}']:.2f}"
    count = len(next(iter(runs.values())))
    title = f"{image}: {len(bench.source.manifest(image)['layers'])} layers, {megabytes(packed)} MB; cold pull, {count} in turn"
    table(title, ["who", "wall s", "x", "CPU s", "x", "peak MB", "above idle", "MB fetched"], rows)
    for name, found in values.items():
        bench.keep(image, name, found)
    bench.runs[image] = runs


