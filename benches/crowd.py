"""Many callers of a daemon at once, each on a connection of its own: how long each waits for its answer."""

import contextlib
import gc
import select
import time
from concurrent.futures import ThreadPoolExecutor

import cri
from report import median, table

CALLERS = 110
ROUNDS = 60
WARM_UP = 10
PULLERS = 4


def callers(bench):
    """110 callers that ask for the status of one of 500 images each, all at one moment (`--images`)."""
    layer, diff_id = bench.source.tiny_layer()
    names = [bench.source.publish("tiny", f"v{number}", [layer], [diff_id]) for number in range(bench.images)]
    rows = []
    for who in ("daemon", "containerd"):
        if who not in bench.candidates:
            continue
        with bench.started(who) as daemon:
            with ThreadPoolExecutor(PULLERS) as pool:
                list(pool.map(lambda name, daemon=daemon: daemon.ask(lambda connection: connection.pull(name)), names))
            daemon.settle()
            seconds = crowd(daemon, names)
        found = {"count": bench.images, "p50": median(seconds), "p99": sorted(seconds)[int(len(seconds) * 0.99)]}
        bench.keep("callers", who, found)
        rows.append([who, *(f"{found[key] * 1e3:.2f}" for key in ("p50", "p99")), f"{max(seconds) * 1e3:.2f}"])
    table(f"callers: {CALLERS} at once, {bench.images} images; ImageStatus, ms", ["who", "p50", "p99", "most"], rows)


def crowd(daemon, names):
    """Seconds from each request to its answer. One thread asks for all, so that it does not wait for itself.

    It shares the cores with the daemon: answers are taken as they come, and read when all are there.
    """
    with contextlib.ExitStack() as parts:
        parts.callback(gc.enable)
        gc.disable()
        poll = select.epoll()
        parts.callback(poll.close)
        connections = {}
        for _ in range(CALLERS):
            connection = parts.enter_context(daemon.calls())
            # With a limit each call of the kernel would be two.
            connection.socket.settimeout(None)
            connections[connection.socket.fileno()] = connection
            poll.register(connection.socket, select.EPOLLIN | select.EPOLLET)
        seconds = []
        for number in range(ROUNDS + WARM_UP):
            found = ask_all(poll, connections, names, number)
            if number >= WARM_UP:
                seconds += found
        return seconds


def ask_all(poll, connections, names, number):
    requests = {}
    for place, (file, connection) in enumerate(connections.items()):
        requests[file] = connection.request("ImageStatus", cri.spec(names[(place + number) % len(names)]))
    began, seconds, waiting = {}, [], set(connections)
    for file, connection in connections.items():
        request = requests[file][1]
        began[file] = time.perf_counter()
        connection.socket.sendall(request)
    while waiting:
        for file, _ in poll.poll(60):
            if file in waiting and connections[file].has_answer():
                seconds.append(time.perf_counter() - began[file])
                waiting.discard(file)
    for file, connection in connections.items():
        connection.answer(requests[file][0])
    return seconds
