#!/usr/bin/env python3
"""Compares the blobs of an image over several connections of HTTP/1.1 with the same over one of HTTP/2, both in TLS.

Usage: http2.py [--nginx PROGRAM] [--rounds N] [--delay SECONDS]

A relay in user space stands between curl and nginx: it holds each byte back for `--delay` in each direction, and the answers
to a rate, of the whole link or of each connection. Needs curl, openssl, and nginx (Debian package `nginx`; unpacked is enough).
No packet is lost: what a loss costs one connection for all, beside one of six, is not measured.
"""

import argparse
import asyncio
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

from bed import Process, wait_until
from report import median, spread, table

PIECE = 64 << 10
QUEUE = 0.02  # A piece waits at most so long for the link: what comes sooner stays with the sender.
# The version, and the most transfers at once.
WAYS = {"HTTP/1.1, 6 at once": ("1.1", 6), "HTTP/1.1, one": ("1.1", 1), "HTTP/2, 6 at once": ("2", 6)}
# What, blobs, bytes of each, bytes a second of the link, and of each connection.
CASES = (
    ("40 small blobs, a link of 100 MB/s", 40, 64 << 10, 100e6, None),
    ("6 large blobs, a link of 100 MB/s", 6, 16 << 20, 100e6, None),
    ("6 large blobs, 25 MB/s a connection", 6, 16 << 20, 100e6, 25e6),
)
CONFIG = """daemon off; master_process off; pid {place}/pid; error_log stderr;
events {{ worker_connections 64; }}
http {{
  access_log off; sendfile on; client_body_temp_path {place}/t; proxy_temp_path {place}/t; fastcgi_temp_path {place}/t;
  uwsgi_temp_path {place}/t; scgi_temp_path {place}/t;
  server {{
    listen unix:{place}/socket ssl http2; root {place}/files;
    ssl_certificate {place}/certificate.pem; ssl_certificate_key {place}/key.pem;
  }}
}}
"""


class Relay:
    """Delays and paces what passes between its port and a socket; counts its connections."""

    def __init__(self, socket, delay):
        self.socket, self.delay, loop = socket, delay, asyncio.new_event_loop()
        self.server = loop.run_until_complete(asyncio.start_server(self.accept, "127.0.0.1", 0, limit=PIECE))
        self.port = self.server.sockets[0].getsockname()[1]
        threading.Thread(target=loop.run_forever, daemon=True).start()

    def limit(self, link, each):
        """The rates from now on."""
        self.link, self.each, self.link_free, self.connections = link, each, 0, 0

    async def accept(self, client_in, client_out):
        self.connections += 1
        server_in, server_out = await asyncio.open_unix_connection(self.socket, limit=PIECE)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self.pass_on(client_in, server_out, False), self.pass_on(server_in, client_out, True))
        client_out.close()
        server_out.close()

    async def pass_on(self, reader, writer, is_paced):
        under_way, own_free = asyncio.Queue(), 0
        arrivals = asyncio.create_task(self.deliver(under_way, writer))
        while data := await reader.read(PIECE):
            now = sent = time.monotonic()
            if is_paced:
                sent = self.link_free = max(now, self.link_free) + len(data) / self.link
                if self.each:
                    sent = own_free = max(sent, own_free + len(data) / self.each)
            under_way.put_nowait((sent + self.delay, data))
            await asyncio.sleep(max(0, sent - now - QUEUE))
        under_way.put_nowait((time.monotonic() + self.delay, b""))
        await arrivals

    async def deliver(self, under_way, writer):
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(max(0, due - time.monotonic()))
            if not data:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def serving(nginx, place):
    """nginx with the files of all cases."""
    files = place / "files"
    files.mkdir()
    for case, (_, count, size, *_) in enumerate(CASES):
        for number in range(count):
            (files / f"{case}-{number}").write_bytes(os.urandom(size))
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out certificate.pem"
    subprocess.run(["openssl", *made.split()], cwd=place, check=True, capture_output=True)
    (place / "nginx.conf").write_text(CONFIG.format(place=place))
    server = Process([nginx, "-p", place, "-c", place / "nginx.conf"], place / "log")
    try:
        wait_until("nginx to listen", (place / "socket").exists)
        yield
    finally:
        server.stop()


def fetch(relay, version, at_once, case, count, size):
    """The seconds of one image; each round has new connections."""
    urls = [f"https://127.0.0.1:{relay.port}/{case}-{number}" for number in range(count)]
    urls = [word for url in urls for word in ("-o", "/dev/null", url)]
    words = ["curl", "-qsSkZ", "--noproxy", "*", "--parallel-max", str(at_once), f"--http{version}"]
    words += ["-w", "%{http_version} %{size_download}\n", *urls]
    began = time.monotonic()
    answers = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    wall = time.monotonic() - began
    if answers != [f"{version} {size}"] * count:
        sys.exit(f"curl was not answered as asked for: {answers[:3]}")
    return wall


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nginx", default="nginx")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--delay", type=float, default=0.01)
    arguments, rows = parser.parse_args(), []
    with tempfile.TemporaryDirectory() as place, serving(arguments.nginx, pathlib.Path(place)):
        relay = Relay(f"{place}/socket", arguments.delay)
        for case, (what, count, size, link, each) in enumerate(CASES):
            walls, connections = {way: [] for way in WAYS}, {}
            for _ in range(arguments.rounds):
                for way, how in WAYS.items():
                    relay.limit(link, each)
                    walls[way].append(fetch(relay, *how, case, count, size))
                    connections[way] = relay.connections
            first, *_, last = walls.values()
            shown = (f"{spread(found)} ({connections[way]})" for way, found in walls.items())
            rows.append([what, *shown, f"{median(last) / median(first):.2f}"])
    table(f"{arguments.rounds} rounds in turn, {arguments.delay * 1e3:g} ms each way: seconds, and connections", ["image", *WAYS, "last to first"], rows)


if __name__ == "__main__":
    main()
