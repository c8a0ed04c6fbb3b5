"""The figure of artifacts: a large one is pulled as fast as the slower of registry and disk, and written once."""

import concurrent.futures
import hashlib
import json
import os
import random
import time

import bed
import candidates
from bed import disk
from bound import receive
from report import median, megabytes, spread, table

FILES = 2
FILE_BYTES = 2 << 30
DISK_BYTES = 10 << 30
PIECE = 1 << 20
CONNECTIONS = 4
PAIRS = 3
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
# The first containerd whose pods mount image volumes.
MOUNTS_IMAGES = (2, 1)


def artifact(bench):
    """An artifact of two files of 2 GiB: rate beside the slower of registry and disk, memory, bytes written."""
    name, blobs = published(bench.source)
    size = FILES * FILE_BYTES
    who = [one for one in ("daemon", "imported") if one in bench.candidates and (one == "daemon" or mounts_images(bench))]
    runs, bounds = {one: [] for one in who}, []
    for _ in range(bench.pairs or PAIRS):
        bounds.append({"registry": size / received(bench.source.address, blobs), "disk": size / written(bench)})
        for one in who:
            with bench.started(one, DISK_BYTES) as candidate:
                candidate.settle()
                before = bed.written(candidate.place)
                pull = candidate.pull(name)
                candidate.settle()
                runs[one].append((pull, bed.written(candidate.place) - before))
            bench.tell(f"artifact {one}: {pull.wall:.2f} s, {pull.cpu:.2f} s CPU, bound {size / min(bounds[-1].values()):.2f} s")
    rows = [[part, *["-"] * 2, spread([bound[part] / 1e6 for bound in bounds], 0), *["-"] * 3] for part in ("registry", "disk")]
    for one, pulls in runs.items():
        ratios = [min(bound.values()) * pull.wall / size for bound, (pull, _) in zip(bounds, pulls)]
        found = {
            "wall": median([pull.wall for pull, _ in pulls]), "cpu": median([pull.cpu for pull, _ in pulls]), "x_bound": median(ratios),
            "above": max(pull.peak - pull.idle for pull, _ in pulls), "x_written": max(wrote for _, wrote in pulls) / size,
        }
        bench.keep("artifact", one, found)
        rates = [size / pull.wall / 1e6 for pull, _ in pulls]
        rows.append([one, f"{found['wall']:.2f}", f"{found['cpu']:.2f}", spread(rates, 0), f"{1 / found['x_bound']:.2f}"])
        rows[-1] += [megabytes(found["above"]), f"{found['x_written']:.3f}"]
    head = ["who", "wall s", "CPU s", "MB/s", "x slower part", "MB above idle", "bytes written / size"]
    table(f"artifact: {FILES} files of {FILE_BYTES >> 30} GiB; the parts alone, and all of it", head, rows)


def mounts_images(bench):
    return tuple(int(part) for part in candidates.version(bench.programs[1]).split(".")[:2]) >= MOUNTS_IMAGES


def published(source):
    """Publishes the artifact; answers its name, and digest and size of its files."""
    folder, layers = source.drafts / "blobs/sha256", []
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        piece, content, file = random.Random(number).randbytes(PIECE), hashlib.sha256(), folder / f"file-{number}"
        with file.open("wb") as output:
            for _ in range(FILE_BYTES // PIECE):
                output.write(piece)
                content.update(piece)
        file.rename(folder / content.hexdigest())
        title = {"org.opencontainers.image.title": f"weights/{number}.safetensors"}
        digest = f"sha256:{content.hexdigest()}"
        layers.append({"mediaType": "application/octet-stream", "digest": digest, "size": FILE_BYTES, "annotations": title})
    config = source.blob(b"{}", "application/vnd.oci.empty.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "artifactType": "application/vnd.cncf.model.manifest.v1+json"}
    text = json.dumps({**manifest, "config": config, "layers": layers}).encode()
    tags = source.drafts / "v2/perf/model/manifests"
    tags.mkdir(parents=True, exist_ok=True)
    (tags / "v1").write_bytes(text)
    return source.image("model"), [layer["digest"] for layer in layers]


def received(address, blobs):
    """Seconds in which a plain client reads all files over several connections, and drops them."""
    part = FILE_BYTES // CONNECTIONS
    parts = [(blob, part, start) for blob in blobs for start in range(0, FILE_BYTES, part)]
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(lambda one: receive(address, *one), parts))
    return time.monotonic() - begun


def written(bench):
    """Seconds in which a plain writer writes as many bytes onto such a disk, durably."""
    piece = random.Random(0).randbytes(PIECE)
    with disk(bench.place, "bound", DISK_BYTES) as place:
        begun = time.monotonic()
        for number in range(FILES):
            with (place / str(number)).open("wb", buffering=0) as file:
                for _ in range(FILE_BYTES // PIECE):
                    file.write(piece)
                os.fsync(file.fileno())
        return time.monotonic() - begun
