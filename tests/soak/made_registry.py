"""A registry with faults whose layers are made while they are sent, and which restarts at its address."""

import socket
import threading
import time

import faulty_registry


class Handler(faulty_registry.Handler):
    """One connection; a large answer that is reset ends anywhere."""

    def setup(self):
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self):
        self.server.connections.discard(self.connection)
        super().finish()

    def send(self, hexadecimal, start, end):
        layer = self.server.layers.get(hexadecimal)
        if layer is None:
            return super().send(hexadecimal, start, end)
        is_reset = self.server.fault() == "reset"
        for piece in layer.read(start, self.server.chance.randrange(start, end) if is_reset else end):
            # Before it is sent: what a restart cuts off counts as well.
            self.server.count.sent(len(piece))
            self.connection.sendall(piece)
        if is_reset:
            raise ConnectionResetError
        return None


class Server(faulty_registry.FaultyRegistry):
    """Serves a folder, and layers that are in no file."""

    def __init__(self, folder, seed, layers, port):
        super().__init__(folder, seed, port)
        self.RequestHandlerClass, self.layers, self.connections = Handler, layers, set()

    def size(self, hexadecimal):
        layer = self.layers.get(hexadecimal)
        return layer.size if layer else super().size(hexadecimal)


class MadeRegistry:
    """The server that runs, and the counts of those before it."""

    def __init__(self, folder, seed, repository):
        self.folder, self.seed, self.repository, self.layers = folder, seed, repository, {}
        self.restarts, self.before, self.faults_before = 0, 0, {}
        self.begin(0)
        self.address = "{}:{}".format(*self.server.server_address)

    def begin(self, port):
        self.server = Server(self.folder, f"{self.seed} {self.restarts}", self.layers, port)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def restart(self, seconds):
        """Ends every connection, and answers again after a while."""
        port = self.server.server_address[1]
        self.server.shutdown()
        self.server.server_close()
        for connection in list(self.server.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # It has ended by itself.
        self.before, self.faults_before = self.sent(), self.faults()
        self.server.count.reset()
        self.server.faults.update(dict.fromkeys(self.server.faults, 0))
        time.sleep(seconds)
        self.restarts += 1
        self.begin(port)

    def publish(self, image):
        self.layers[hexadecimal(image.layer.digest)] = image.layer
        for path, content in (
            (f"blobs/sha256/{hexadecimal(image.id)}", image.config),
            (f"v2/{self.repository}/manifests/{image.name}", image.manifest),
        ):
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)

    def sent(self):
        """Bytes of layers, configurations and manifests that left, since the first start."""
        return self.before + self.server.count.bytes

    def faults(self):
        now = self.server.faults
        return {name: self.faults_before.get(name, 0) + now.get(name, 0) for name in self.faults_before | now}


def hexadecimal(digest):
    return digest.removeprefix("sha256:")
