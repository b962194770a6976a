# A verifier of SSH signatures for nodes whose ssh-keygen is missing or older than 8.2. It knows the
# keys that teams have most: Ed25519, also in a security key, and RSA, also certified by a CA of
# these kinds. It holds no secret, so its time may depend on its input.
#
# ../verify/importcheck.py goes before it.
import base64
import hashlib
import struct

ARMOR = ("-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----")
CERTIFIED = "-cert-v01@openssh.com"
# The number of fields of each kind of key, after its name.
FIELDS = {"ssh-ed25519": 1, "ssh-rsa": 2, "ecdsa-sha2-nistp256": 2, "ecdsa-sha2-nistp384": 2, "ecdsa-sha2-nistp521": 2,
          "sk-ssh-ed25519@openssh.com": 2, "sk-ecdsa-sha2-nistp256@openssh.com": 3}


class Malformed(Exception):
    """A signature or a key that cannot be read."""


class Fields:
    """The fields of a blob, one after the other."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        if size > len(self.data) - self.at:
            raise Malformed("it is cut off")
        self.at += size
        return self.data[self.at - size:self.at]

    def number(self, form=">I"):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self):
        return self.take(self.number())

    def text(self):
        try:
            return self.string().decode("utf-8")
        except UnicodeDecodeError:
            raise Malformed("a text in it is not UTF-8")

    def rest(self):
        return self.take(len(self.data) - self.at)

    def end(self):
        if self.at != len(self.data):
            raise Malformed("there is more after its end")


def pack(*strings):
    return b"".join(struct.pack(">I", len(s)) + s for s in strings)


class Certificate:
    """The certificate of a CA for a key."""

    def __init__(self, blob):
        f = Fields(blob)
        kind = f.text()
        self.kind = kind.replace(CERTIFIED, "@openssh.com" if kind.startswith("sk-") else "")
        if self.kind not in FIELDS:
            raise Malformed("%.60r is no kind of key" % kind)
        f.string()  # the nonce
        self.key = pack(self.kind.encode("ascii"), *[f.string() for _ in range(FIELDS[self.kind])])
        f.number(">Q")  # the serial number
        self.user = f.number() == 1
        f.string()  # the name of the certificate
        self.principals, names = [], Fields(f.string())
        while names.at < len(names.data):
            self.principals.append(names.text())
        self.after, self.before = f.number(">Q"), f.number(">Q")
        self.critical = f.string()
        f.string(), f.string()  # the extensions, the reserved field
        self.authority = f.string()
        self.signed, self.signature = blob[:f.at], f.string()
        f.end()


class Signature:
    """An armored SSH signature."""

    def __init__(self, text):
        lines = text.strip().splitlines()
        if len(lines) < 3 or (lines[0], lines[-1]) != ARMOR:
            raise Malformed("it is not an SSH signature")
        try:
            self.blob = base64.b64decode("".join(lines[1:-1]).encode("ascii"), validate=True)
        except ValueError:
            raise Malformed("it is not an SSH signature")
        f = Fields(self.blob)
        if f.take(6) != b"SSHSIG" or f.number() != 1:
            raise Malformed("it is not an SSH signature of version 1")
        self.public, self.namespace = f.string(), f.text()
        self.reserved, self.hash, self.raw = f.string(), f.text(), f.string()
        f.end()
        kind = Fields(self.public).text()
        self.certificate = Certificate(self.public) if kind.endswith(CERTIFIED) else None
        self.key = self.certificate.key if self.certificate else self.public
        if self.hash not in ("sha256", "sha512") or not self.namespace or self.reserved:
            raise Malformed("it is not an SSH signature of version 1")

    def armored(self):
        """The signature in one spelling, for ssh-keygen: both read the same bytes."""
        coded = base64.b64encode(self.blob).decode("ascii")
        return "\n".join([ARMOR[0]] + [coded[i:i + 70] for i in range(0, len(coded), 70)] + [ARMOR[1], ""])

    def is_of(self, message):
        """Whether the key signed the message; of a certificate, also whether its CA signed that."""
        digest = hashlib.new(self.hash, message).digest()
        whole = b"SSHSIG" + pack(self.namespace.encode("utf-8"), self.reserved, self.hash.encode("ascii"), digest)
        c = self.certificate
        return verifies(self.key, whole, self.raw) and (not c or verifies(c.authority, c.signed, c.signature))


def fingerprint(key):
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode("ascii").rstrip("=")


def verifies(key, message, signature):
    """Whether a signature of a message is that of a key."""
    k, s = Fields(key), Fields(signature)
    kind, form, raw = k.text(), s.text(), s.string()
    if kind == "ssh-rsa":
        e, n = (int.from_bytes(k.string(), "big") for _ in range(2))
        return verify_rsa(n, e, message, raw, form)
    if kind == "ssh-ed25519" and form == kind:
        return verify_ed25519(k.string(), message, raw)
    if kind == "sk-ssh-ed25519@openssh.com" and form == kind:
        point, application, rest = k.string(), k.string(), s.rest()
        if len(rest) != 5 or not rest[0] & 1:  # nobody touched the security key
            return False
        return verify_ed25519(point, hashlib.sha256(application).digest() + rest + hashlib.sha256(message).digest(), raw)
    raise Failed("this node's ssh-keygen is too old to verify a signature by a key of the kind %.60s" % kind, "old-ssh-keygen")


# The names of hashes in PKCS #1.
DIGEST_INFO = {"rsa-sha2-256": ("sha256", "3031300d060960864801650304020105000420"),
               "rsa-sha2-512": ("sha512", "3051300d060960864801650304020305000440")}


def verify_rsa(n, e, message, raw, form):
    """PKCS #1 v1.5; the padding is made and compared as a whole."""
    if form not in DIGEST_INFO or not 2048 <= n.bit_length() <= 16384 or e < 3 or e.bit_length() > 64:
        return False
    name, info = DIGEST_INFO[form]
    size = (n.bit_length() + 7) // 8
    tail = bytes.fromhex(info) + hashlib.new(name, message).digest()
    want = b"\x00\x01" + b"\xff" * (size - len(tail) - 3) + b"\x00" + tail
    number = int.from_bytes(raw, "big")
    return number < n and pow(number, e, n).to_bytes(size, "big") == want


# Ed25519, as RFC 8032 has it: the field, the order of the group, the curve's d, and a root of -1.
P = 2 ** 255 - 19
ORDER = 2 ** 252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)


def add_points(a, b):
    """The sum of two points in extended coordinates."""
    x, y = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    z, w = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = y - x, w - z, w + z, y + x
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def times(number, point):
    total = (0, 1, 1, 0)
    while number:
        if number & 1:
            total = add_points(total, point)
        point = add_points(point, point)
        number >>= 1
    return total


def same_point(a, b):
    return (a[0] * b[2] - b[0] * a[2]) % P == 0 and (a[1] * b[2] - b[1] * a[2]) % P == 0


def read_point(data):
    """The point of 32 bytes, None where they are none."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P or not x and sign:
        return None
    if x & 1 != sign:
        x = P - x
    return (x, y, 1, x * y % P)


def verify_ed25519(public, message, raw):
    if len(public) != 32 or len(raw) != 64:
        return False
    key, r, s = read_point(public), read_point(raw[:32]), int.from_bytes(raw[32:], "little")
    if not key or not r or s >= ORDER or same_point(times(8, key), (0, 1, 1, 0)):
        return False
    challenge = int.from_bytes(hashlib.sha512(raw[:32] + public + message).digest(), "little") % ORDER
    base = read_point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
    return same_point(times(s, base), add_points(r, times(challenge, key)))
