#!/usr/bin/env python3
"""Serves a folder as a registry over HTTP/1.1 with ranges, each connection capped, and counts what it sends.

Usage: slow_registry.py [--root DIR] [--port N] [--rate MB_PER_SECOND] [--delay SECONDS] [--no-ranges]

DIR holds `v2/NAME/manifests/TAG` and `v2/NAME/blobs/DIGEST`, as they are asked for. A connection is a token bucket: it
carries `--rate` million bytes a second (0, the default: as fast as it goes), with no more than a tenth of a second saved
up. `--delay` holds each answer back, as a far registry does. Prints the port on the first line; at its end, on SIGTERM or
SIGINT, a JSON object: for each path the bytes sent, requests and connections; and the most bodies sent at once.
"""

import argparse
import http.server
import json
import pathlib
import re
import signal
import socketserver
import sys
import threading
import time

PIECE = 64 << 10
BURST_SECONDS = 0.1
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Counters:
    def __init__(self):
        self.lock = threading.Lock()
        self.paths = {}
        self.running = self.running_max = 0

    def begin(self, path, connection):
        with self.lock:
            entry = self.paths.setdefault(path, {"bytes": 0, "requests": 0, "connections": set()})
            entry["requests"] += 1
            entry["connections"].add(connection)
            self.running += 1
            self.running_max = max(self.running_max, self.running)
            return entry

    def end(self, entry, count):
        with self.lock:
            entry["bytes"] += count
            self.running -= 1

    def report(self):
        with self.lock:
            paths = {path: {**entry, "connections": len(entry["connections"])} for path, entry in self.paths.items()}
            return {"paths": paths, "bytes": sum(p["bytes"] for p in paths.values()), "running_max": self.running_max}


class Bucket:
    def __init__(self, rate):
        self.rate, self.saved, self.at = rate, rate * BURST_SECONDS, time.monotonic()

    def take(self, count):
        if not self.rate:
            return
        now = time.monotonic()
        self.saved = min(self.saved + (now - self.at) * self.rate, self.rate * BURST_SECONDS) - count
        self.at = now
        if self.saved < 0:
            time.sleep(-self.saved / self.rate)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.bucket = Bucket(self.server.rate)

    def do_GET(self):
        path = self.path.split("?")[0]
        if path.rstrip("/") == "/v2":
            return self.answer(200, b"{}")
        file = (self.server.root / path.lstrip("/")).resolve()
        if not file.is_relative_to(self.server.root) or not file.is_file():
            return self.answer(404, b'{"errors":[{"code":"BLOB_UNKNOWN","message":"unknown"}]}')
        size = file.stat().st_size
        first, last, status = 0, size - 1, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.server.ranges:
            first, last, status = int(asked[1]), min(int(asked[2] or size - 1), size - 1), 206
            if first > last:
                return self.answer(416, b"")
        time.sleep(self.server.delay)
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Type", MANIFEST if "/manifests/" in path else "application/octet-stream")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.send_file(path, file, first, last + 1)

    def send_file(self, path, file, first, end):
        entry, sent = self.server.counters.begin(path, self.client_address), 0
        try:
            with file.open("rb") as body:
                if not self.server.rate:
                    sent = self.connection.sendfile(body, first, end - first) or 0
                    return
                body.seek(first)
                while first + sent < end:
                    piece = body.read(min(PIECE, end - first - sent))
                    self.bucket.take(len(piece))
                    self.connection.sendall(piece)
                    sent += len(piece)
        finally:
            self.server.counters.end(entry, sent)

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0, help="million bytes a second over each connection")
    parser.add_argument("--delay", type=float, default=0, help="seconds before each answer")
    parser.add_argument("--no-ranges", action="store_true", help="answer ranges with the whole")
    arguments = parser.parse_args()
    server = Server(("127.0.0.1", arguments.port), Handler)
    server.root, server.rate = arguments.root.resolve(), arguments.rate * 1e6
    server.delay, server.ranges, server.counters = arguments.delay, not arguments.no_ranges, Counters()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    print(server.server_address[1], flush=True)
    server.serve_forever()
    json.dump(server.counters.report(), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
