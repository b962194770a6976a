# What is read of the files of a distribution: for what changes or verifies an
# environment, and for a probe that is asked to.
from binascii import b2a_base64  # base64 imports re, too

try:
    from _csv import reader  # the part of csv that is written in C: the rest imports re
except ImportError:
    from csv import reader


BUFFER = memoryview(bytearray(1 << 17))  # of what is read; these programs have one thread


def record_of(name):
    """The sha256 of the RECORD of a distribution, "" where there is none."""
    for found, info in named_infos():
        if found == name:
            return record_sha256(info)
    return ""


def file_digest(path, algorithm="sha256"):
    """The digest of a file, as an object of hashlib's."""
    import hashlib

    digest = getattr(hashlib, algorithm)()
    fd = os.open(path, os.O_RDONLY)  # open() would make three objects for each of a thousand files
    try:
        n = os.readv(fd, [BUFFER])
        while n:
            digest.update(BUFFER[:n])
            n = os.readv(fd, [BUFFER])
    finally:
        os.close(fd)
    return digest


def written(digest):
    """A digest as RECORD writes it, without the padding."""
    return b2a_base64(digest).rstrip(b"=\n").replace(b"+", b"-").replace(b"/", b"_").decode("ascii")


def record_rows(info):
    """The rows of a dist-info's RECORD, or None where there is none."""
    try:
        with open(os.path.join(info, "RECORD"), newline="", encoding="utf-8") as f:
            return [row for row in reader(f) if row and row[0]]
    except OSError:
        return None


def altered(info):
    """Files that are not what RECORD says, the first few of them."""
    wrong = []
    for row in record_rows(info) or []:
        want = row[1] if len(row) > 1 else ""
        if not want.startswith("sha256="):
            continue
        try:
            digest = file_digest(os.path.join(os.path.dirname(info), row[0])).digest()
        except OSError:
            wrong.append(row[0])
            continue
        if written(digest) != want[len("sha256="):]:
            wrong.append(row[0])
        if len(wrong) > 4:
            break
    return wrong
