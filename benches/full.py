"""A node with very many images: its start, its memory, and how long callers wait for what grows with their number."""

import hashlib
import json
import time

import crowd
import node
from bed import Failed, launch
from report import median, megabytes, table

LISTS = 20
STATUSES = 500
# File systems are told again for a second: each of these is asked for after that.
FILESYSTEMS, FILESYSTEM_PAUSE = 5, 1.2
COMMANDS = 21
BARE_STARTS = 3


def full(bench):
    """A node with 10,000 images (`--full N`): start with and without copied records, memory, calls, and `imagelet ls`."""
    layer, diff_id = bench.source.tiny_layer()
    pattern = bench.source.publish("tiny", "v0", [layer], [diff_id])
    with bench.started("daemon") as daemon:
        daemon.pull(pattern)
        daemon.stop()
        names = [pattern, *multiply(daemon.store, pattern, bench.full - 1)]
        daemon.settle()
        found = {"count": len(names), **measure(bench, daemon, names)}
    bench.keep("full", "daemon", found)
    milliseconds = ("start", "list", "list_cpu", "status", "status_p99", "crowd_p99", "filesystem")
    milliseconds += ("command", "command_json")
    row = [*(f"{found[key] * 1e3:.2f}" for key in milliseconds), *(megabytes(found[key]) for key in ("rss", "list_bytes"))]
    head = ["start ms", "list ms", "its CPU", "status ms", "p99", f"p99 of {crowd.CALLERS}", "filesystem ms"]
    head += ["ls ms", "as JSON"]
    table(f"full: {len(names)} images; medians of calls", [*head, "idle MB", "list MB"], [row])


def multiply(store, pattern, count):
    """Puts so many images beside the one that was pulled, each with a configuration of its own; answers their names.

    Each pull writes the names of all: ten thousand take minutes. The records are what pulls would have written.
    """
    images = store / "images"
    (first,) = images.iterdir()
    documents = {file.name: file.read_bytes() for file in first.iterdir()}
    record = unsealed(documents["image.json"])
    config, manifest = json.loads(documents["config.json"]), json.loads(documents["manifest.json"])
    names = unsealed((store / "names.json").read_bytes())
    tags = []
    for number in range(1, count + 1):
        config["config"]["Labels"] = {"bench": f"tiny:v{number}"}
        text = json.dumps(config).encode()
        image = hashlib.sha256(text).hexdigest()
        manifest["config"] |= {"digest": f"sha256:{image}", "size": len(text)}
        described = json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(described).hexdigest()}"
        tags.append(f"{pattern.rpartition(':')[0]}:v{number}")
        own = [tags[-1], f"{pattern.rpartition(':')[0]}@{digest}"]
        record |= {"id": f"sha256:{image}", "manifest": digest, "metadata_size": len(text) + len(described), "names": own}
        names["names"] |= dict.fromkeys(own, f"sha256:{image}")
        folder = images / image
        folder.mkdir(mode=0o700)
        for name, content in (("config.json", text), ("manifest.json", described), ("image.json", sealed(record))):
            (folder / name).write_bytes(content)
    names["names"] = dict(sorted(names["names"].items()))
    (store / "names.json").write_bytes(sealed(names))
    return tags


def sealed(record):
    """A record as the store writes it, with a digest at its end."""
    text = b'{"sealed":1,' + json.dumps(record, separators=(",", ":")).encode()[1:-1]
    return text + f',"check":"sha256:{hashlib.sha256(text).hexdigest()}"}}'.encode()


def unsealed(text):
    return {key: value for key, value in json.loads(text).items() if key not in ("sealed", "check")}


def measure(bench, daemon, names):
    found = {"start": median(node.restarts(daemon))}
    time.sleep(node.IDLE_SECONDS)
    found["rss"] = daemon.process.memory()
    there = daemon.ask(lambda connection: connection.list())
    if there < len(names):
        raise Failed(f"{daemon.name} lists {there} of {len(names)} images:\n{daemon.process.tail()}")
    with daemon.calls() as connection:
        found["list_bytes"] = len(connection.listed())
        statuses = node.timed(STATUSES, lambda number: connection.status(names[number * 7919 % len(names)]))
        cpu = daemon.process.cpu()
        found["list"] = median(node.timed(LISTS, lambda _: connection.listed()))
        found["list_cpu"] = (daemon.process.cpu() - cpu) / LISTS
        filesystems = []
        for _ in range(FILESYSTEMS):
            time.sleep(FILESYSTEM_PAUSE)
            filesystems += node.timed(1, lambda _: connection.filesystem())
    seconds = sorted(crowd.crowd(daemon, names))
    log = bench.place / "ls"
    command = (daemon.program, "--endpoint", daemon.socket, "ls")
    plain, json_ = (median([launch(log, *command, *how)[0] for _ in range(COMMANDS)]) for how in ((), ("-o", "json")))
    return found | {
        "status": median(statuses),
        "status_p99": sorted(statuses)[int(STATUSES * 0.99)],
        "crowd_p99": seconds[int(len(seconds) * 0.99)],
        "filesystem": median(filesystems),
        "command": plain,
        "command_json": json_,
    }
