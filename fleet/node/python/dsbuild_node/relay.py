"""The node's side of a relay. It receives files in pieces from other nodes, compares each piece
with the controller's sha256, writes it, and sends it to further nodes while the rest arrives. Where
the controller itself sends a file, it only watches the file grow. Pieces come in order, so one
number, Copy.have, says which are here.

Between nodes: TLS 1.3, both sides with a certificate of this run. The child sends one line,
{"token": ..., "at": first piece}; the parent answers with frames: a length in 4 bytes and a
piece. A frame of length 0 only says that the parent is alive."""
import base64
import hashlib
import json
import os
import socket
import ssl
import struct
import threading
import time

from dsbuild_node.agent import Gone, Orders, send, serve
from dsbuild_node.controller import REQUEST
from dsbuild_node.files import read_json

PART = ".part"  # ends the name of a file that is not whole
BEAT = 1  # seconds between frames of a parent that has no new piece
CONNECT = 3  # seconds to connect to a parent
MOST_CHILDREN = 16  # connections at once, strangers included
MOST_LINE = 4096


class Wrong(Exception):
    """The parent sent something else than the controller announced."""


class NoRoom(Exception):
    """This node cannot write the file."""


def open_file(path):
    """A file to read. It closes itself once no thread uses it any more."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", 0)


class Copy:
    """A file on this node, as far as it has arrived."""

    def __init__(self, order):
        self.id, self.path, self.size, self.piece = order["id"], order["file"], order["size"], order["piece"]
        sums = base64.b64decode(order["sums"])
        self.sums = [sums[i:i + 32] for i in range(0, len(sums), 32)]
        self.have, self.grown, self.file, self.told = 0, threading.Condition(), None, 0
        self.parent, self.stopped = None, ""  # why the controller has stopped the fetch
        self.check_part()
        self.told = self.have

    def whole(self):
        return self.have == len(self.sums)

    def length(self, index):
        return min(self.piece, self.size - index * self.piece)

    def read(self, index):
        """A piece of the file on the disk; b"" if it is not there, or incomplete. The open file
        outlives its name: an installation may take the file away."""
        length, at = self.length(index), index * self.piece
        for path in (None, self.path + PART, self.path):
            f = self.file
            if path:
                try:
                    f = open_file(path)
                except OSError:
                    continue
            data = os.pread(f.fileno(), length, at) if f else b""
            if len(data) == length:
                self.file = f
                return data
        return b""

    def right(self, index, data):
        return len(data) == self.length(index) and hashlib.sha256(data).digest() == self.sums[index]

    def grow(self):
        with self.grown:
            self.have += 1
            self.grown.notify_all()

    def check_part(self):
        """Count the right pieces at the file's beginning. Return whether there are new ones."""
        before = self.have
        while not self.whole() and self.right(self.have, self.read(self.have)):
            self.grow()
        return self.have > before

    def open_part(self):
        """The file to write, cut off behind the right pieces. Children read the same open file."""
        try:
            f = os.fdopen(os.open(self.path + PART, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb")
            self.file = os.fdopen(os.dup(f.fileno()), "rb", 0)
            f.truncate(self.have * self.piece)
            f.seek(self.have * self.piece)
        except OSError as e:
            raise NoRoom(e.strerror)
        return f

    def add(self, f, data):
        """Write the next piece."""
        if not self.right(self.have, data):
            raise Wrong("piece %d is corrupt" % self.have)
        try:
            f.write(data)
            f.flush()
        except OSError as e:
            raise NoRoom(e.strerror)
        self.grow()

    def finish(self):
        """Give the whole file its name."""
        try:
            if os.path.exists(self.path + PART):
                os.rename(self.path + PART, self.path)
        except OSError as e:
            raise NoRoom(e.strerror)

    def hold(self):
        """Open the file that the controller has sent: an installation may take it away from now on."""
        self.file = open_file(self.path)

    def wait(self, index):
        """Wait a moment for a piece. Return whether it is here."""
        with self.grown:
            if self.have <= index:
                self.grown.wait(BEAT)
            return self.have > index

    def stop(self, why):
        self.stopped = why
        if self.parent:
            try:
                self.parent.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Limit:
    """The bytes per second that this node sends to all its children."""

    def __init__(self, rate):
        self.rate, self.free, self.lock = rate, time.monotonic(), threading.Lock()

    def take(self, count):
        if not self.rate:
            return
        with self.lock:
            begin = max(self.free, time.monotonic())
            self.free = begin + float(count) / self.rate
        time.sleep(max(0, begin - time.monotonic()))


def load_identity(context, order):
    """Load the certificate and the key through pipes: ssl reads files only, and the key must
    be in none."""
    readers = []
    try:
        for text in (order["certificate"], order["key"]):
            reader, writer = os.pipe()
            readers.append(reader)
            os.write(writer, text.encode("ascii"))
            os.close(writer)
        context.load_cert_chain(*["/dev/fd/%d" % r for r in readers])
    finally:
        for reader in readers:
            os.close(reader)


def new_context(protocol, order):
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # the controller's name of the node is compared instead
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=order["ca"])
    load_identity(context, order)
    return context


def peer_name(connection):
    return [value for part in connection.getpeercert()["subject"] for key, value in part if key == "commonName"]


def receive(connection, count):
    data = bytearray()
    while len(data) < count:
        block = connection.recv(min(count - len(data), 1 << 16))
        if not block:
            raise OSError("connection closed")
        data += block
    return bytes(data)


def receive_line(connection):
    line = b""
    while not line.endswith(b"\n"):
        if len(line) > MOST_LINE:
            raise ValueError("line too long")
        line += receive(connection, 1)
    return line


def start(work, *args):
    thread = threading.Thread(target=work, args=args)
    thread.daemon = True
    thread.start()


def listen():
    """A socket on a free port of all addresses."""
    try:
        listener = socket.socket(socket.AF_INET6)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
    except OSError:
        listener = socket.socket(socket.AF_INET)
        listener.bind(("", 0))
    listener.listen(MOST_CHILDREN)
    return listener


class Relay:
    """Sends pieces to children, and executes the orders of the controller."""

    def begin(self, order):
        self.limit, self.copies, self.tokens = Limit(order["limit"]), {}, {}
        self.server, self.client = new_context(ssl.PROTOCOL_TLS_SERVER, order), new_context(ssl.PROTOCOL_TLS_CLIENT, order)
        self.free, self.socket = threading.Semaphore(MOST_CHILDREN), listen()
        start(self.accept)
        start(self.report)
        return {"port": self.socket.getsockname()[1]}

    def accept(self):
        while True:
            try:
                raw, _ = self.socket.accept()
            except OSError:  # the caller has gone, or no descriptor is free now
                time.sleep(BEAT)
                continue
            if not self.free.acquire(False):
                raw.close()
                continue
            try:
                start(self.serve, raw)
            except RuntimeError:  # no thread is free now
                raw.close()
                self.free.release()

    def serve(self, raw):
        """Serve one child; a stranger is only disconnected."""
        try:
            raw.settimeout(REQUEST["quiet_s"])  # of silence, then it is given up
            with self.server.wrap_socket(raw, server_side=True) as child:
                ask = read_json(receive_line(child))
                self.send(child, self.copies[ask["token"]], int(ask["at"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError):  # ssl.SSLError is an OSError
            pass  # the child says to the controller what it missed
        finally:
            raw.close()
            self.free.release()

    def send(self, child, copy, at):
        while 0 <= at < len(copy.sums):
            data = b""
            if copy.wait(at):
                data = copy.read(at)
                if not data:
                    raise OSError("file no longer exists")
            self.limit.take(len(data))
            child.sendall(struct.pack(">I", len(data)) + data)
            at += bool(data)

    def report(self):
        """Report the received size to the controller while it grows."""
        while True:
            time.sleep(BEAT / 2.0)
            for copy in list(self.copies.values()):
                if copy.have != copy.told:
                    copy.told = copy.have
                    send({"id": copy.id, "have": copy.told})

    def add(self, order):
        """Take part in the relay of a file."""
        copy = Copy(order)
        self.copies[order["token"]] = copy
        self.tokens[copy.id] = order["token"]
        return {"have": copy.have}

    def copy(self, order):
        return self.copies[self.tokens[order["id"]]]

    def fetch(self, order):
        copy = self.copy(order)
        copy.stopped = ""
        start(self.fetch_all, copy, order)
        return {}

    def fetch_all(self, copy, order):
        """Receive a file from a parent, and report the end to the controller."""
        why, wrong, local = "", False, False
        try:
            if not copy.whole():
                self.receive_all(copy, order)
            copy.finish()
        except Wrong as e:
            why, wrong = str(e), True
        except NoRoom as e:
            why, local = str(e), True
        except OSError as e:
            why = e.strerror or str(e)
        if copy.stopped and why:
            why, wrong, local = copy.stopped, False, False
        copy.told = copy.have
        send({"id": copy.id, "fetch": order["fetch"], "have": copy.have, "why": why, "wrong": wrong, "local": local})

    def connect(self, copy, order):
        """Connect to the parent. copy.parent is set before the handshake, so that stop ends it."""
        raw = socket.create_connection((order["address"], order["port"]), CONNECT)
        raw.settimeout(REQUEST["quiet_s"])  # of silence, then it is given up
        copy.parent = self.client.wrap_socket(raw, do_handshake_on_connect=False)
        try:
            if copy.stopped:
                raise OSError("stopped")
            copy.parent.do_handshake()
            if peer_name(copy.parent) != [order["name"]]:
                raise OSError("a different node answers at this address")
        except OSError:
            copy.parent.close()
            raise
        return copy.parent

    def receive_all(self, copy, order):
        with self.connect(copy, order), copy.open_part() as f:
            copy.parent.sendall((json.dumps({"token": self.tokens[copy.id], "at": copy.have}) + "\n").encode("ascii"))
            while not copy.whole():
                if copy.stopped:
                    raise OSError("stopped")
                self.receive_piece(copy, f)

    def receive_piece(self, copy, f):
        length, = struct.unpack(">I", receive(copy.parent, 4))
        if length == 0:
            return
        if length != copy.length(copy.have):
            raise Wrong("piece %d has %d bytes" % (copy.have, length))
        copy.add(f, receive(copy.parent, length))

    def stop(self, order):
        self.copy(order).stop(order["why"])
        return {}

    def watch(self, order):
        """Follow the file that the controller sends."""
        start(self.follow, self.copy(order))
        return {}

    def hold(self, order):
        self.copy(order).hold()
        return {}

    def follow(self, copy):
        while not copy.whole() and self.copies[self.tokens[copy.id]] is copy:
            if not copy.check_part():
                time.sleep(0.02)


def describe(error):
    return {"failed": "%s: %s" % (type(error).__name__, error)}


def main():
    relay, orders = Relay(), Orders()
    send({"to": 0, "ok": {}})
    try:
        serve(orders.take, {name: getattr(relay, name) for name in ("begin", "add", "fetch", "stop", "watch", "hold")}, describe)
    except Gone:
        pass
    os._exit(0)  # without waiting for threads
