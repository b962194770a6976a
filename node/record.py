# What is read of the files of a distribution: for what changes or verifies an
# environment, and for a probe that is asked to.
HASHES = ("sha256", "sha384", "sha512")  # that files are compared by
BUFFER = memoryview(bytearray(1 << 17))  # of what is read; these programs have one thread


def record_of(name):
    """The sha256 of the RECORD of a distribution, "" where there is none."""
    for found, info in named_infos():
        if found == name:
            return record_sha256(info)
    return ""


def named_hasher(algorithm):
    """What makes the digests of one of HASHES."""
    import hashlib

    return getattr(hashlib, algorithm)


def file_digest(path, new=None):
    """The digest of a file, as an object of hashlib's, sha256 if not told otherwise."""
    fd = os.open(path, os.O_RDONLY)  # open() would make three objects for each of a thousand files
    try:
        digest = (new or hasher())(BUFFER[:os.readv(fd, [BUFFER])])
        n = os.readv(fd, [BUFFER])
        while n:
            digest.update(BUFFER[:n])
            n = os.readv(fd, [BUFFER])
    finally:
        os.close(fd)
    return digest


def written(digest):
    """A digest as RECORD writes it, without the padding."""
    from binascii import b2a_base64  # base64 imports re, too

    return b2a_base64(digest).rstrip(b"=\n").replace(b"+", b"-").replace(b"/", b"_").decode("ascii")


def record_rows(info):
    """The rows of a dist-info's RECORD, each with path and hash at least. None where
    there is none."""
    try:
        with open(os.path.join(info, "RECORD"), "rb") as f:
            lines = f.read().decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
    except OSError:
        return None
    if any('"' in line for line in lines):  # a path with a comma
        from csv import reader  # imports re

        rows = reader([line + "\n" for line in lines])
    else:
        rows = [line.split(",") for line in lines]
    return [row if len(row) > 1 else row + [""] for row in rows if row and row[0]]


def altered(info):
    """Files that are not what RECORD says, or missing: the first few of them."""
    wrong = []
    for row in record_rows(info) or []:
        algorithm, _, want = row[1].partition("=")
        if algorithm not in HASHES:
            continue
        try:
            digest = file_digest(os.path.join(os.path.dirname(info), row[0]), named_hasher(algorithm)).digest()
        except OSError:
            digest = b""
        if written(digest) != want.rstrip("="):
            wrong.append(row[0])
            if len(wrong) > 4:
                break
    return wrong
