"""Figures of a daemon that runs: memory while it pulls, a node full of images, and many callers at once."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from bed import Failed, rotated
from candidates import Daemon
from report import median, megabytes, spread, table

DAEMONS = ("daemon", "background", "keeping", "containerd")
RSS_DISK_BYTES = 10 << 30
RSS_PULLS = 2
IDLE_SECONDS = 10
STARTS = 5
PULLERS = 4
LISTS = 100
STATUSES = 500
FILESYSTEMS = 50
CALLERS = (1, 10, 50)


def chosen(bench, names):
    return [who for who in names if who in bench.candidates]


def rss(bench):
    """Peak of resident memory above idle while the largest image at hand is pulled."""
    image = "ml" if bench.source.has("ml") else "web"
    name, rows = bench.source.image(image), []
    for who in chosen(bench, DAEMONS):
        with bench.started(who, RSS_DISK_BYTES) as daemon:
            found = {"image": image, "idle": daemon.idle, "peak": 0}
            for _ in range(RSS_PULLS):
                pull = daemon.pull(name)
                daemon.remove_and_wait(name)
                bench.tell(f"rss {who} {image}: {megabytes(pull.peak)} MB, {pull.wall:.1f} s")
                found["peak"] = max(found["peak"], pull.peak)
        found["above"] = found["peak"] - found["idle"]
        bench.keep("rss", who, found)
        rows.append([who, *(megabytes(found[key]) for key in ("peak", "idle", "above"))])
    title = f"rss: most resident memory in {RSS_PULLS} pulls of {image} after a start, MB"
    table(title, ["who", "peak", "idle", "above idle"], rows)


def idle(bench):
    """Memory, start and latencies of a daemon with nothing, then with 500 images (`--images`)."""
    layer, diff_id = bench.source.tiny_layer()
    names = [bench.source.publish("tiny", f"v{number}", [layer], [diff_id]) for number in range(bench.images)]
    rows = []
    for who in chosen(bench, ("daemon", "containerd")):
        with bench.started(who) as daemon:
            found = {"count": bench.images, **idle_one(bench, daemon, names)}
        bench.keep("idle", who, found)
        rows.append([who, *(megabytes(found[key]) for key in ("rss_empty", "rss", "anonymous"))])
        rows[-1] += [f"{found[key] * 1e3:.0f}" for key in ("start_empty", "start")]
        calls = ("list", "list_cpu", "status", "status_p99", "filesystem", "filesystem_cpu")
        rows[-1] += [f"{found[key] * 1e3:.2f}" for key in calls]
    head = ["who", "empty MB", "full MB", "of it anon", "start empty ms", "start full ms", "list ms", "its CPU"]
    head += ["status ms", "p99", "filesystem ms", "its CPU"]
    table(f"idle: {bench.images} images, {IDLE_SECONDS} s after a start; medians of calls", head, rows)


def idle_one(bench, daemon, names):
    found = {"start_empty": median(restarts(daemon))}
    time.sleep(IDLE_SECONDS)
    found |= {"rss_empty": daemon.process.memory()}
    begun = time.monotonic()
    with ThreadPoolExecutor(PULLERS) as pool:
        list(pool.map(lambda name: daemon.ask(lambda connection: connection.pull(name)), names))
    bench.tell(f"idle {daemon.name}: {len(names)} images in {time.monotonic() - begun:.1f} s")
    daemon.settle()
    found["start"] = median(restarts(daemon))
    time.sleep(IDLE_SECONDS)
    found |= {"rss": daemon.process.memory(), "anonymous": daemon.process.memory("RssAnon")}
    there = daemon.ask(lambda connection: connection.list())
    if there < len(names):
        raise Failed(f"{daemon.name} lists {there} of {len(names)} images")
    with daemon.calls() as connection:
        statuses = timed(STATUSES, lambda number: connection.status(names[number % len(names)]))
        for key, times, call in (("list", LISTS, connection.listed), ("filesystem", FILESYSTEMS, connection.filesystem)):
            cpu = daemon.process.cpu()
            found[key] = median(timed(times, lambda _, call=call: call()))
            found[f"{key}_cpu"] = (daemon.process.cpu() - cpu) / times
    return found | {"status": median(statuses), "status_p99": sorted(statuses)[int(STATUSES * 0.99)]}


def restarts(daemon):
    """Seconds to the first answer of each of a few starts; the last one runs."""
    seconds = []
    for _ in range(STARTS):
        daemon.stop()
        seconds.append(daemon.start())
    return seconds


def timed(times, call):
    seconds = []
    for number in range(times):
        begun = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - begun)
    return seconds


def together(bench):
    """One, 10 and 50 callers that pull `web` at once: bytes fetched and wall clock."""
    name = bench.source.image("web")
    with contextlib.ExitStack() as parts:
        daemons = [parts.enter_context(bench.started(who)) for who in chosen(bench, ("daemon", "containerd"))]
        runs = {(daemon.name, callers): [] for daemon in daemons for callers in CALLERS}
        for number in range((bench.pairs or 3) + 1):
            for callers in CALLERS:
                for daemon in rotated(daemons, number):
                    one = crowd(bench, daemon, name, callers)
                    if number > 0:
                        runs[daemon.name, callers].append(one)
    rows = []
    for (who, callers), found in runs.items():
        wall, single = median([one["wall"] for one in found]), median([one["wall"] for one in runs[who, 1]])
        fetched, alone = (max(one["bytes"] for one in runs[who, count]) for count in (callers, 1))
        requests = max(one["requests"] for one in found)
        bench.keep("together", who, {f"x_wall_{callers}": wall / single, f"x_bytes_{callers}": round(fetched / alone, 3)})
        rows.append([who, callers, spread([one["wall"] for one in found]), f"{wall / single:.2f}", megabytes(fetched)])
        rows[-1] += [f"{fetched / alone:.3f}", requests]
    table("together: callers of web at once", ["who", "callers", "wall s", "x one", "MB fetched", "x one", "requests"], rows)


def crowd(bench, daemon: Daemon, name, callers):
    """So many callers, each on a connection of its own, all let go at one moment."""
    gate, errors = threading.Barrier(callers + 1), []

    def caller():
        try:
            with daemon.calls() as connection:
                gate.wait()
                connection.pull(name)
        except Exception as error:  # Told by the thread that waits for this one.
            errors.append(error)
            gate.abort()

    bench.source.forget()
    threads = [threading.Thread(target=caller) for _ in range(callers)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        gate.wait()
    begun = time.monotonic()
    for thread in threads:
        thread.join()
    wall = time.monotonic() - begun
    if errors:
        raise errors[0]
    count = bench.source.count()
    daemon.remove_and_wait(name)
    daemon.settle()
    bench.tell(f"together {daemon.name} {callers}: {wall:.3f} s, {count['bytes'] / 1e6:.1f} MB")
    return {"wall": wall, "bytes": count["bytes"], "requests": count["requests"]}
