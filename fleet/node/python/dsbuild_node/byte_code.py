"""The byte code of DeepSpeed's modules: unpacks the byte code of a wheel, and finds byte code that is not
that of its module."""
import hashlib
import os

from dsbuild_node.distributions import home
from dsbuild_node.files import content, open_regular, read_json

MOST_CODE = 256 << 20  # bytes of byte code; DeepSpeed has a thirtieth of it


def unpack_byte_code(file, sha256):
    """The byte code of a wheel's modules by their names. Empty if the file does not unpack to
    this digest."""
    try:
        import lzma
    except ImportError:  # an optional part of Python
        return {}
    try:
        with open(open_regular(file), "rb") as f:
            data = f.read(MOST_CODE)
        texts, room = [], MOST_CODE
        while data:  # one stream after the other
            stream = lzma.LZMADecompressor()
            texts.append(stream.decompress(data, room))
            room -= len(texts[-1])
            data = stream.unused_data
        text = b"".join(texts)
    except (OSError, EOFError, lzma.LZMAError):
        return {}
    if hashlib.sha256(text).hexdigest() != sha256:
        return {}
    listing, _, code = text.partition(b"\n")
    modules, at = {}, 0
    try:
        for name, size in read_json(listing):
            if not name.startswith("/") and os.pardir not in name.split("/"):
                modules[name] = code[at:at + size]
            at += size
    except (ValueError, TypeError, AttributeError):  # no list of names and sizes
        return {}
    return modules


def differing(site, found, brought):
    """The paths of byte code that is neither that of the wheel nor what this Python compiles from
    the module."""
    import warnings

    known = unpack_byte_code(os.path.join(home(), "bytecode.xz"), brought.get("sha256")) if brought else {}
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path, cached, level, data in found:
            if level or data[4:8] != bytes(4) or known.get(path) != data[16:]:
                if not compiles_to(os.path.join(site, path), level, data):
                    wrong.append(cached)
    return wrong


def compiles_to(module, level, data):
    """Whether byte code matches its module, or has a form that Python ignores and compiles again."""
    import importlib.util
    import marshal

    source, flags = content(module, 1 << 26), int.from_bytes(data[4:8], "little")
    if data[:4] != importlib.util.MAGIC_NUMBER or flags == 3 and data[8:16] != importlib.util.source_hash(source):
        return True
    try:
        return marshal.loads(data[16:]) == compile(source, module, "exec", dont_inherit=True, optimize=int(level[-1:] or 0))
    except Exception:  # no code at all, or no module
        return False
