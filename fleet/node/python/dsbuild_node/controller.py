"""What the controller told this program, and the messages to it. Every program is a module of this package
with a function main. They run on Python 3.8 and later; much older ones can parse the probe.

The program that starts here has no file: modules come from memory (boot in program.go)."""
import json
import os
import sys

MARK = ""  # begins each message
REQUEST = {}  # filled before any other module is imported


def run(told):
    """Run the program that the controller asks for."""
    global MARK
    told = json.loads(told.decode("utf-8").split("\n", 3)[3])  # after remote.EndShell
    MARK = told["mark"]
    REQUEST.update(told["request"] or {})
    module(told["program"]).main()


def module(name):
    """A module of this package, imported by its name."""
    __import__("dsbuild_node." + name)
    return sys.modules["dsbuild_node." + name]


def source_of(name):
    """The source of a module."""
    return sys.modules[__name__].__spec__.loader.get_source(name)


def emit(message):
    """Send one message. The controller ignores all other output on stdout."""
    data = ("\n" + MARK + json.dumps(message, separators=(",", ":")) + "\n").encode("ascii")
    while data:
        data = data[os.write(1, data):]
