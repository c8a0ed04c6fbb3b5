"""A registry on loopback of which one request in a hundred is reset, and one in a hundred fails; some answers stall."""

import pathlib
import random
import sys
import threading
import time

BENCHES = pathlib.Path(__file__).resolve().parents[2] / "benches"
sys.path.insert(0, str(BENCHES))
import registry  # noqa: E402

RESET, ERROR, STALL = 0.01, 0.01, 0.005
#: Shorter than the deadline of a head, longer than any other answer takes.
STALL_SECONDS = 2
RESET_AFTER = 3000


class Handler(registry.Handler):
    """One connection, with the faults that chance gives its requests."""

    def serve(self, method, path, headers):
        if path.startswith("/v2/") and path != "/v2/":
            fault = self.server.fault()
            if fault == "error":
                return self.whole(method, "503 Service Unavailable", b"")
            if fault == "reset":
                raise ConnectionResetError
            if fault == "stall":
                time.sleep(STALL_SECONDS)
        return super().serve(method, path, headers)

    def send(self, hexadecimal, start, end):
        if self.server.fault() == "reset":
            super().send(hexadecimal, start, min(end, start + RESET_AFTER))
            raise ConnectionResetError
        super().send(hexadecimal, start, end)


class FaultyRegistry(registry.Server):
    """Serves a folder; `faults` counts what it did on purpose."""

    def __init__(self, folder, seed, port=0):
        super().__init__(registry.read_arguments([str(folder), "--port", str(port)]))
        self.RequestHandlerClass = Handler
        self.chance, self.turn = random.Random(seed), threading.Lock()
        self.faults = {"reset": 0, "error": 0, "stall": 0}

    def fault(self):
        with self.turn:
            drawn = self.chance.random()
            for name, share in (("reset", RESET), ("error", ERROR), ("stall", STALL)):
                if drawn < share:
                    self.faults[name] += 1
                    return name
                drawn -= share
            return None

    def serve(self):
        """Serves from another thread until the process ends; returns the address."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return "{}:{}".format(*self.server_address)
