"""The calls of CRI that pull images and run pods, over a unix socket: as much of HTTP/2, gRPC and protobuf as they need, and no packages.

A call is answered by a message or fails; the words of a failure are in the log of whoever was asked.
"""

import contextlib
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
PADDED = 8
WINDOW = (1 << 31) - 1
WINDOW_FIRST = 65535
FRAME_MAX = 1 << 24
# Read at once where a short answer is waited for: room for a long one costs more than the reading.
SHORT = 1 << 13
# Windows as large as they get, so that no answer waits for an update.
GREETING = PREFACE + struct.pack(">I", 6)[1:] + bytes([SETTINGS, 0]) + struct.pack(">IHI", 0, 4, WINDOW)
GREETING += struct.pack(">I", 4)[1:] + bytes([WINDOW_UPDATE, 0]) + struct.pack(">II", 0, WINDOW - WINDOW_FIRST)


# `NamespaceMode.NODE`: no network plug-in is needed.
HOST_NETWORK = 2


class CallFailed(Exception):
    """The call was answered by an error."""


def literal(text):
    """A header string: length in seven bits and more, not compressed."""
    length = len(text)
    if length < 127:
        return bytes([length]) + text
    rest, head = length - 127, bytearray([127])
    while rest >= 128:
        head.append(rest % 128 | 128)
        rest //= 128
    return bytes(head) + bytes([rest]) + text


def varint(number):
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


def field(number, content):
    """A protobuf field that has a length."""
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def number(place, value):
    """A protobuf field that is a number."""
    return varint(place << 3) + varint(value)


def fields(message):
    """The fields of a protobuf message, as (number, content)."""
    place = 0

    def number():
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while place < len(message):
        tag = number()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, number()
            continue
        length = {1: 8, 5: 4}.get(kind) or number()
        yield tag >> 3, message[place : place + length]
        place += length


class Connection:
    """One connection to an image service; one call at a time."""

    def __init__(self, path, seconds_max=900):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(seconds_max)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.socket.sendall(GREETING)
        self.stream, self.unread = 1, bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def pull(self, image):
        """Answers the id."""
        return self.text("PullImage", spec(image))

    def remove(self, image):
        self.call("RemoveImage", spec(image))

    def list(self):
        """Answers how many images there are."""
        return sum(place == 1 for place, _ in fields(self.listed()))

    def listed(self):
        """The list as it came, not read: that takes longer here than anywhere else."""
        return self.call("ListImages", b"")

    def status(self, image):
        """Answers whether it is there."""
        return any(place == 1 for place, _ in fields(self.call("ImageStatus", spec(image))))

    def filesystem(self):
        self.call("ImageFsInfo", b"")

    def run_sandbox(self, name, logs):
        """Runs the pod `default/NAME` on the host's network; answers its id and its configuration."""
        metadata = field(1, name) + field(2, f"uid-{name}") + field(3, "default")
        security = field(1, number(1, HOST_NETWORK))
        config = field(1, metadata) + field(3, str(logs)) + field(8, field(2, security))
        return self.text("RunPodSandbox", field(1, config)), config

    def create_container(self, sandbox, image, command):
        """Answers the id of a container of an image that is here."""
        identity, config = sandbox
        words = b"".join(field(3, word) for word in command)
        security = field(3, number(1, HOST_NETWORK))
        container = field(1, field(1, "main")) + field(2, field(1, image)) + words + field(11, "log")
        container += field(15, field(2, security))
        return self.text("CreateContainer", field(1, identity) + field(2, container) + field(3, config))

    def start_container(self, identity):
        self.call("StartContainer", field(1, identity))

    def remove_sandbox(self, identity):
        self.call("StopPodSandbox", field(1, identity))
        self.call("RemovePodSandbox", field(1, identity))

    def text(self, method, message):
        """The first field of the answer."""
        return next(content.decode() for place, content in fields(self.call(method, message)) if place == 1)

    def call(self, method, message):
        stream, request = self.request(method, message)
        self.socket.sendall(request)
        answer = self.answer(stream)
        if len(answer) < 5:
            raise CallFailed(f"{method} was answered by an error")
        return bytes(answer[5 : 5 + struct.unpack(">I", answer[1:5])[0]])

    def request(self, method, message):
        """A call that is not sent yet: its stream, and its bytes."""
        service = "RuntimeService" if method.endswith(("Sandbox", "Container")) else "ImageService"
        headers = b"\x83\x86\x04" + literal(f"/runtime.v1.{service}/{method}".encode()) + b"\x01" + literal(b"localhost")
        for name, value in ((b"content-type", b"application/grpc"), (b"te", b"trailers")):
            headers += b"\x00" + literal(name) + literal(value)
        stream, self.stream = self.stream, self.stream + 2
        body = b"\x00" + struct.pack(">I", len(message)) + message
        return stream, frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, body)

    def has_answer(self):
        """Reads what has come; whether an answer ends in it. Frames that only keep the connection are passed over."""
        if not (piece := self.socket.recv(SHORT)):
            raise CallFailed("the connection was closed")
        self.unread += piece
        place = 0
        while len(self.unread) >= place + 9:
            length, kind, flags = int.from_bytes(self.unread[place : place + 3], "big"), *self.unread[place + 3 : place + 5]
            place += 9 + length
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                return len(self.unread) >= place
        return False

    def answer(self, stream):
        answer = bytearray()
        while True:
            kind, flags, of, content = self.frame()
            if kind == SETTINGS and not flags & ACK:
                self.socket.sendall(frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                self.socket.sendall(frame(PING, ACK, 0, content))
            elif kind == GOAWAY or (kind == RST_STREAM and of == stream):
                raise CallFailed("the call was cut off")
            elif of == stream and kind == DATA:
                answer += content[1 : len(content) - content[0]] if flags & PADDED else content
            if of == stream and kind in (DATA, HEADERS) and flags & END_STREAM:
                return answer

    def frame(self):
        head = self.read(9)
        length = int.from_bytes(head[:3], "big")
        return head[3], head[4], int.from_bytes(head[5:9], "big") & WINDOW, self.read(length)

    def read(self, length):
        while len(self.unread) < length:
            if not (piece := self.socket.recv(1 << 18)):
                raise CallFailed("the connection was closed")
            self.unread += piece
        content = bytes(self.unread[:length])
        del self.unread[:length]
        return content


def frame(kind, flags, stream, content):
    assert len(content) < FRAME_MAX
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def spec(image):
    """A request whose first field is an ImageSpec."""
    return field(1, field(1, image))


def answers(path):
    """Whether an image service listens there and lists."""
    with contextlib.suppress(OSError, CallFailed):
        with Connection(path, 5) as connection:
            connection.listed()
            return True
    return False
