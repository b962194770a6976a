"""The part that all agents have. An agent is a program that runs on a node for as long as its
controller does. Orders come as JSON lines on standard input; the agent answers each with one message
that has the order's number. The controller sends something more often than every silence_s seconds: a
broken network does not always end the input."""
import json
import os
import select
import signal
import threading
import time

from dsbuild_node.controller import REQUEST, emit

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)  # each ends an agent

speaking = threading.Lock()


class Gone(Exception):
    """The controller is gone, or no longer wants the result of an order."""


def send(message):
    """Send a message, from any thread."""
    with speaking:
        emit(message)


def answer(number, do, describe):
    """Send the result of do. If do fails, send what describe returns for the exception; if that
    is None, the exception is not for the controller."""
    message = {"to": number}
    try:
        message["ok"] = do()
    except Exception as e:
        failed = describe(e)
        if failed is None:
            raise
        message.update(failed)
    send(message)


def serve(take, verbs, describe):
    """Execute the orders that take returns, until one of them is to end."""
    while True:
        order = take()
        if order["do"] == "end":  # has no number and gets no answer
            return
        answer(order["number"], lambda: verbs[order["do"]](order), describe)


class Orders:
    """The orders on standard input, and the life line."""

    def __init__(self, urgent=()):
        self.data, self.ended, self.heard, self.pending = b"", False, time.monotonic(), []
        self.urgent = urgent  # verbs that interrupt an order

    def read(self):
        block = os.read(0, 65536)
        self.heard = time.monotonic()
        if not block:
            self.ended = True
        lines = (self.data + block).split(b"\n")
        self.data = lines.pop()
        for line in lines:
            order = json.loads(line.decode("utf-8"))
            if order["do"] != "ping":
                self.pending.append(order)

    def listen(self, wait):
        """Read all pending input. Wait up to wait seconds for its beginning."""
        while not self.ended and select.select([0], [], [], wait)[0]:
            self.read()
            wait = 0

    def silent(self):
        return self.ended or time.monotonic() - self.heard > REQUEST["silence_s"]

    def check(self):
        """Raise Gone if the result of the current order is no longer wanted."""
        self.listen(0)
        if self.silent() or any(o["do"] in self.urgent for o in self.pending):
            raise Gone()

    def take(self):
        """Return the next order. Raise Gone if there will be none."""
        self.listen(0)  # what came while the agent was busy ends a silence
        while not self.pending:
            if self.silent():
                raise Gone()
            self.listen(min(REQUEST["silence_s"], 5))
        return self.pending.pop(0)
