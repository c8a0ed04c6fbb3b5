#!/usr/bin/env python3
"""A registry that only reads: serves a corpus folder on loopback, counts what it sends, and can be slow on purpose.

Usage: registry.py [--address HOST] [--port N] [--tls PEM] [--rate BYTES_PER_SECOND] [--line BYTES_PER_SECOND] [--round-trip SECONDS]
                   [--delay SECONDS] [--no-ranges] FOLDER...

Each FOLDER has `blobs/sha256/HEX` and `v2/NAME/manifests/TAG`; the first that has a file wins. Blobs leave by sendfile, so
that serving takes next to no CPU from whoever is measured beside it. `--rate` holds each connection to so many bytes a
second and `--line` all of them together; `--round-trip` delays each answer once and each connection twice, as the handshakes of
TCP and TLS do; `--delay` holds each answer back, `--no-ranges` answers a range with the whole.
`--tls` is a file with a certificate and its key. The first line on stdout is the address. `GET /count` tells what was sent since `POST /count`.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import socketserver
import ssl
import sys
import threading
import time

PIECE = 1 << 20
# Seconds between two readings of how much was sent.
MOMENT = 0.005
SLOW_PIECE = 64 << 10
TLS_HANDSHAKE = b"\x16"
HEAD_LINES_MAX = 100
MANIFEST = re.compile(r"/v2/(?P<name>[a-z0-9._/-]+)/manifests/(?P<tag>[A-Za-z0-9._:-]+)")
BLOB = re.compile(r"/v2/[a-z0-9._/-]+/blobs/sha256:(?P<hex>[0-9a-f]{64})")
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Count:
    """What was sent."""

    def __init__(self):
        self.lock = threading.Lock()
        self.reset()

    def reset(self):
        with self.lock:
            self.requests, self.manifests, self.bytes, self.blobs, self.moments = 0, 0, 0, {}, []

    def asked(self, manifest=False, blob=None):
        with self.lock:
            self.requests += 1
            self.manifests += manifest
            if blob:
                self.blobs[blob] = self.blobs.get(blob, 0) + 1

    def sent(self, size):
        with self.lock:
            self.bytes += size
            now = time.monotonic()
            if not self.moments or now >= self.moments[-1][0] + MOMENT:
                self.moments.append((now, self.bytes))

    def text(self):
        with self.lock:
            kept = {"requests": self.requests, "manifests": self.manifests, "bytes": self.bytes, "blobs": self.blobs}
            kept["moments"] = self.moments
            return json.dumps(kept).encode()


class Line:
    """So many bytes a second for all connections."""

    def __init__(self, rate):
        self.rate, self.lock, self.free_at = rate, threading.Lock(), 0.0

    def wait(self, size):
        """Until the line has taken these bytes, too."""
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + size / self.rate
            free_at = self.free_at
        if (early := free_at - time.monotonic()) > 0:
            time.sleep(early)


class Handler(socketserver.StreamRequestHandler):
    """One connection. Reads heads by hand: the standard library's parser costs more than the files it would serve."""

    disable_nagle_algorithm = True

    def setup(self):
        time.sleep(2 * self.server.round_trip)
        if self.server.tls:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def handle(self):
        try:
            while (head := self.head()) is not None:
                if not self.serve(*head):
                    return
        except (ConnectionError, TimeoutError):
            pass  # The client left; what it got is counted.

    def head(self):
        """Method, path and the headers that matter, or nothing at the end of the connection."""
        if self.rfile.peek(1)[:1] == TLS_HANDSHAKE:
            # A client that tries TLS first goes on without it once it is answered by HTTP.
            self.connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return None
        first = self.rfile.readline(8192).split()
        if len(first) != 3:
            return None
        headers = {}
        for _ in range(HEAD_LINES_MAX):
            line = self.rfile.readline(8192).rstrip(b"\r\n")
            if not line:
                return first[0].decode("latin-1"), first[1].decode("latin-1"), headers
            name, _, value = line.partition(b":")
            headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
        return None

    def serve(self, method, path, headers):
        path = path.partition("?")[0]
        if path == "/count":
            if method == "POST":
                self.server.count.reset()
            return self.whole(method, "200 OK", self.server.count.text(), "application/json")
        if method not in ("GET", "HEAD"):
            return self.whole(method, "405 Method Not Allowed", b"")
        if held := self.server.delay + self.server.round_trip:
            time.sleep(held)
        if found := MANIFEST.fullmatch(path):
            self.server.count.asked(manifest=True)
            return self.manifest(method, found["name"], found["tag"])
        if found := BLOB.fullmatch(path):
            if method == "GET":
                self.server.count.asked(blob=f"sha256:{found['hex']}")
            return self.blob(method, found["hex"], headers.get("range"))
        self.server.count.asked()
        return self.whole(method, "200 OK" if path == "/v2/" else "404 Not Found", b"")

    def manifest(self, method, name, tag):
        file = self.server.find(f"v2/{name}/manifests/{tag}")
        if file is None and tag.startswith("sha256:"):
            file = self.server.find(f"blobs/sha256/{tag.removeprefix('sha256:')}")
        if file is None:
            return self.whole(method, "404 Not Found", b"{}", "application/json")
        text = file.read_bytes()
        digest = f"Docker-Content-Digest: sha256:{hashlib.sha256(text).hexdigest()}\r\n"
        return self.whole(method, "200 OK", text, json.loads(text)["mediaType"], digest)

    def whole(self, method, status, body, media_type="text/plain", more=""):
        head = f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode()
        self.connection.sendall(head if method == "HEAD" else head + body)
        if method != "HEAD" and status.startswith("200") and media_type != "application/json":
            self.server.count.sent(len(body))
        return True

    def blob(self, method, hexadecimal, wanted):
        size = self.server.size(hexadecimal)
        if size is None:
            return self.whole(method, "404 Not Found", b"")
        start, end, status, more = 0, size, "200 OK", ""
        if wanted and self.server.ranges and (found := RANGE.fullmatch(wanted)):
            start = int(found[1])
            end = min(int(found[2]) + 1, size) if found[2] else size
            if start >= end:
                return self.whole(method, "416 Range Not Satisfiable", b"", more=f"Content-Range: bytes */{size}\r\n")
            status, more = "206 Partial Content", f"Content-Range: bytes {start}-{end - 1}/{size}\r\n"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: application/octet-stream\r\nContent-Length: {end - start}\r\n"
            f"Accept-Ranges: bytes\r\nDocker-Content-Digest: sha256:{hexadecimal}\r\n{more}\r\n"
        )
        self.connection.sendall(head.encode())
        if method == "GET":
            self.send(hexadecimal, start, end)
        return True

    def send(self, hexadecimal, start, end):
        """The bytes of a span of a blob."""
        with self.server.blob(hexadecimal).open("rb") as source:
            self.send_file(source, start, end)

    def send_file(self, source, start, end):
        rate, line, begun, sent = self.server.rate, self.server.line, time.monotonic(), 0
        while start < end:
            wanted = min(SLOW_PIECE if rate or line else PIECE, end - start)
            if line:
                line.wait(wanted)
            if self.server.tls:
                # The kernel does not encrypt what it sends by itself.
                self.connection.sendall(os.pread(source.fileno(), wanted, start))
                piece = wanted
            else:
                piece = os.sendfile(self.connection.fileno(), source.fileno(), start, wanted)
            if piece == 0:
                raise ConnectionResetError
            start, sent = start + piece, sent + piece
            self.server.count.sent(piece)
            if rate and (early := begun + sent / rate - time.monotonic()) > 0:
                time.sleep(early)


class Server(socketserver.ThreadingTCPServer):
    """The listening socket, a thread for each connection."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self, arguments):
        super().__init__((arguments.address, arguments.port), Handler)
        self.folders, self.count = arguments.folders, Count()
        self.rate, self.delay, self.ranges = arguments.rate, arguments.delay, not arguments.no_ranges
        self.round_trip, self.line, self.tls = arguments.round_trip, arguments.line and Line(arguments.line), None
        if arguments.tls:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(arguments.tls)

    def handle_error(self, request, client_address):
        """A client that does not like the certificate says so itself."""
        if not isinstance(sys.exception(), (ConnectionError, ssl.SSLError)):
            super().handle_error(request, client_address)

    def blob(self, hexadecimal):
        return self.find(f"blobs/sha256/{hexadecimal}")

    def size(self, hexadecimal):
        """The size of a blob, or nothing where there is none."""
        file = self.blob(hexadecimal)
        return file and file.stat().st_size

    def find(self, path):
        if ".." in path.split("/"):
            return None
        return next((folder / path for folder in self.folders if (folder / path).is_file()), None)


def read_arguments(arguments=None):
    """Those of the command line, or these."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tls", type=pathlib.Path)
    parser.add_argument("--line", type=float)
    parser.add_argument("--round-trip", type=float, default=0)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--delay", type=float, default=0)
    parser.add_argument("--no-ranges", action="store_true")
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    return parser.parse_args(arguments)


def main():
    arguments = read_arguments()
    sys.setswitchinterval(0.001)
    with Server(arguments) as server:
        print("{}:{}".format(*server.server_address), flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
