# Appends standard input to a file, and reports the digest of the whole file. It reads the
# input only once.
import fcntl
import hashlib
import select

SILENCE = 1800  # seconds; a broken network does not always end the input
SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ, which Python names since 3.10


def widen(pipe, size):
    """Enlarges a pipe beyond 64 KB, if it may: with a small one, reader and writer have to
    take turns more often."""
    try:
        fcntl.fcntl(pipe, SETPIPE_SZ, size)
    except OSError:  # not a pipe, or this user has too many large ones
        pass


def append(path, at):
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    digest, buffer = hashlib.sha256(), BUFFER
    while at:
        n = os.readv(fd, [buffer[:at]])
        if not n:
            sys.exit("%s is shorter than it was" % path)
        digest.update(buffer[:n])
        at -= n
    widen(0, 1 << 20)
    while select.select([0], [], [], SILENCE)[0]:
        n = os.readv(0, [buffer])
        if not n:
            os.close(fd)
            return digest.hexdigest()
        digest.update(buffer[:n])
        left = buffer[:n]
        while left:
            left = left[os.write(fd, left):]
    sys.exit("nothing came for %d s" % SILENCE)


emit({"sha256": append(REQUEST["path"], REQUEST["at"])})
