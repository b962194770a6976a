# Decides whether a policy accepts a wheel: who must have signed the wheel's statement, and what the
# statement must say. A node judges before it changes a file. It takes the policy from the driver,
# and believes nothing else that the driver says about the wheel. Its own policies hold for every driver.
#
# enforce.py and sshsig.py come before this file.
import calendar
import csv
import re

POLICY_KEYS = {"version", "signers", "revoked", "builders", "minimum", "sources", "age_s", "companions"}
CLOCK_SLACK = 300  # seconds by which the clocks of a builder and of this node may differ
POLICY_VERSIONS = (1, 2)  # 2: with identities of sigstore
MOST_SIGNATURES, LARGEST_SIGNATURE, LARGEST_STATEMENT = 32, 64 << 10, 4 << 20
STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"


def refuse(why):
    raise Failed("the policy refuses it: " + why, "policy")


def read_policies(told, own):
    """The driver's policy, if it has one, and those of the node, by their paths: nobody who drives
    a deploy can relax these."""
    found = [told] if told is not None else []
    for path in own:
        try:
            with open(path, "rb") as f:
                found.append(json.loads(f.read(1 << 20).decode("utf-8")))
        except (OSError, ValueError) as e:
            raise Failed("the node's own policy %s cannot be read: %s" % (path, e), "policy")
    for policy in found:
        if not isinstance(policy, dict) or set(policy) != POLICY_KEYS or policy["version"] not in POLICY_VERSIONS:
            raise Failed("a policy has a form that this dsbuild does not know", "policy")
        if not policy["signers"] or policy["builders"] < 1:
            refuse("it trusts nobody")
    return found


def once(pairs):
    """A JSON object, whose keys must be different: parsers disagree on the others."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


class Statement:
    """The content of a wheel's provenance statement."""

    def __init__(self, text):
        self.data = text.encode("utf-8")
        if not text or len(self.data) > LARGEST_STATEMENT:
            refuse("the wheel has no statement" if not text else "its statement is too large")
        try:
            said = json.loads(text, object_pairs_hook=once)
            (subject,) = said["subject"]  # a statement of several files would be of none
            if said["_type"] != STATEMENT or said["predicateType"] != PREDICATE:
                raise ValueError("it is no provenance statement")
            run, built = said["predicate"]["runDetails"], said["predicate"]["buildDefinition"]
            (source,) = [m["uri"] for m in built["resolvedDependencies"] if m.get("name") == "source"]
            self.name, self.sha256, self.source = subject["name"], subject["digest"]["sha256"], source
            self.finished = calendar.timegm(time.strptime(run["metadata"]["finishedOn"], "%Y-%m-%dT%H:%M:%SZ"))
            self.version = self.name.split("-")[1].split("+")[0]
            self.record = [m["digest"]["sha256"] for m in run.get("byproducts", []) if m.get("name") == "RECORD"]
            if not all(isinstance(s, str) for s in (self.name, self.sha256, self.source)):
                raise ValueError("it has no texts")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as e:
            refuse("its statement cannot be read: %.200s" % (e or type(e).__name__))


def release(version):
    """A version in a form that can be compared: its numbers, and whether it comes before that release."""
    numbers, rest = re.match(r"((?:\d{1,9}\.)*\d{1,9})?(.*)", version, re.S).groups()
    numbers = [int(n) for n in (numbers or "0").split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return (numbers, not rest or rest.startswith((".post", "-")))


def matches(pattern, text):
    return re.match("(?s)" + ".*".join(re.escape(part) for part in pattern.split("*")) + r"\Z", text) is not None


def is_bundle(text):
    """Whether a signature is a bundle of sigstore: an SSH signature is armored."""
    return text.lstrip(" \t\r\n").startswith("{")


def moment(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class BundleVerifier:
    """The dsbuild that the driver has sent: it verifies bundles of sigstore, which no program of a
    node can. sent is its file and digest, None where the driver has sent none."""

    def __init__(self, sent):
        self.sent, self.used, self.missed = sent, False, False

    def signer(self, statement, bundle, signers):
        """The name of the signer who made a bundle, and its identity."""
        if not signers:
            raise Malformed("the policy trusts no identity of sigstore")
        if not self.sent:
            self.missed = True
            raise Malformed("a bundle of sigstore, for which the node has no verifier")
        said = self.run(json.dumps({"statement": statement, "bundle": bundle, "signers": signers}).encode("ascii"))
        if said["error"]:
            raise Malformed("%.400s" % said["error"])
        return said["name"], said["identity"]

    def run(self, question):
        """The verdict of the verifier on a question."""
        path = self.sent["file"]
        if not self.used:
            if SignedWheel(path).sha256 != self.sent["sha256"]:
                raise Failed("the verifier %s is not the one that was sent" % path, "verifier-broken")
            os.chmod(path, 0o700)
            self.used = True
        try:
            child = subprocess.Popen([path, "verify-bundle"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, err = child.communicate(question, timeout=60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise Failed("the verifier %s did not end" % path, "verifier-broken")
        except OSError as e:
            raise Failed("the verifier %s cannot run: %s" % (path, e.strerror), "verifier-broken")
        try:
            said = json.loads(out.decode("utf-8"))
            if child.returncode == 0 and all(isinstance(said[key], str) for key in ("name", "identity", "error")):
                return said
        except (ValueError, KeyError, TypeError):
            pass
        raise Failed("the verifier %s ended with status %d: %.200s" % (path, child.returncode, err.decode("utf-8", "replace").strip()), "verifier-broken")


class Judge:
    """Judges one wheel by one policy."""

    def __init__(self, policy, folder, bundles):
        self.policy, self.folder, self.bundles = policy, folder, bundles
        self.now = time.time()
        self.own = False  # whether dsbuild's own verifier of SSH signatures was needed

    def judge(self, signed, name, sha256):
        """Refuses a wheel, or returns its statement and the number of its builders."""
        s = Statement(signed["statement"])
        if s.name != name:
            refuse("the statement is about another file")
        if s.sha256 != sha256:
            refuse("the statement is about a file with sha256 %.64s, but this file has %s" % (s.sha256, sha256))
        self.check_facts(s)
        return s, self.count_builders(s, signed["signatures"])

    def check_facts(self, s):
        p = self.policy
        if p["minimum"] and release(s.version) < release(p["minimum"]):
            refuse("version %.40s is older than %s" % (s.version, p["minimum"]))
        if p["sources"] and not any(matches(pattern, s.source) for pattern in p["sources"]):
            refuse("it was built from %.200s, which is none of the sources" % s.source)
        if p["age_s"] and self.now - s.finished > p["age_s"]:
            refuse("it was built on %s, too long ago" % moment(s.finished))
        if s.finished - self.now > CLOCK_SLACK:
            refuse("it was built on %s, after the time of this clock (%s)" % (moment(s.finished), moment(self.now)))

    def count_builders(self, statement, signatures):
        names, keys, rejected = set(), set(), []
        self.bundles.missed = False
        if len(signatures) > MOST_SIGNATURES:
            refuse("it has more than %d signatures" % MOST_SIGNATURES)
        for number, text in enumerate(signatures):
            try:
                if len(text) > LARGEST_SIGNATURE:
                    raise Malformed("it is too large")
                name, key = self.bundle_builder(statement, text) if is_bundle(text) else self.key_builder(statement, text)
                if name in names or key in keys:
                    raise Malformed("%s has signed already" % name)
                names.add(name)
                keys.add(key)
            except Malformed as e:
                rejected.append("signature %d: %s" % (number + 1, e))
        if len(names) < self.policy["builders"] and self.bundles.missed:
            raise Failed("the policy trusts identities of sigstore, and the node has no verifier for their bundles", "verifier")
        if len(names) < self.policy["builders"]:
            refuse("%d of %d trusted signatures%s" % (len(names), self.policy["builders"], " (%s)" % "; ".join(rejected) if rejected else ""))
        return len(names)

    def bundle_builder(self, statement, text):
        """The builder for whom a bundle of sigstore speaks, and its identity."""
        signers = [signer for signer in self.policy["signers"] if signer.get("sigstore")]
        return self.bundles.signer(statement.data.decode("utf-8"), text, signers)

    def key_builder(self, statement, text):
        """The builder for whom an SSH signature speaks, and its key."""
        sig = Signature(text)
        return self.builder(sig, statement.data), sig.key

    def builder(self, sig, message):
        """The builder for whom a signature speaks."""
        authority = sig.certificate.authority if sig.certificate else sig.key
        for key in (sig.key, authority):
            if fingerprint(key) in self.policy["revoked"]:
                raise Malformed("the key %s is revoked" % fingerprint(key))
        for signer in self.policy["signers"]:
            if not signer.get("sigstore") and signer["ca"] == bool(sig.certificate) and base64.b64decode(signer["key"].split()[1]) == authority:
                break
        else:
            raise Malformed("the policy does not trust the key %s" % fingerprint(authority))
        if signer["from"] and self.now < signer["from"]:
            raise Malformed("the key of %s is not valid before %s" % (signer["name"], moment(signer["from"])))
        if signer["until"] and self.now >= signer["until"]:
            raise Malformed("the key of %s is expired on %s" % (signer["name"], moment(signer["until"])))
        if sig.namespace not in signer["namespaces"]:
            raise Malformed("the key of %s may not sign in the namespace %.60r" % (signer["name"], sig.namespace))
        identity = self.principal(sig.certificate, signer) if sig.certificate else signer["name"]
        if not self.verified(sig, message, signer, identity):
            raise Malformed("it is not of this statement")
        return signer["name"] + "/" + identity if sig.certificate else identity

    def principal(self, certificate, signer):
        named = [name for name in signer["principals"] if name in certificate.principals]
        if not named:
            raise Malformed("the certificate names none of the principals of %s" % signer["name"])
        if not certificate.user or certificate.critical:
            raise Malformed("the certificate is not one of a builder")
        if not certificate.after <= self.now < certificate.before:
            raise Malformed("the certificate is not valid: it is for %s to %s" % tuple(moment(min(t, 1 << 36)) for t in (certificate.after, certificate.before)))
        return named[0]

    def verified(self, sig, message, signer, identity):
        """Whether the signature is one of the message, by ssh-keygen where that can say it."""
        options = ("cert-authority," if signer["ca"] else "") + 'namespaces="%s"' % ",".join(signer["namespaces"])
        allowed, text = os.path.join(self.folder, "allowed_signers"), os.path.join(self.folder, "signature")
        for path, content in ((allowed, "%s %s %s\n" % (identity, options, signer["key"])), (text, sig.armored())):
            with open(path, "w", encoding="utf-8") as f:
                f.write(content)
        argv = ["ssh-keygen", "-Y", "verify", "-f", allowed, "-I", identity, "-n", sig.namespace, "-s", text]
        try:
            child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError:
            return self.verified_here(sig, message)
        try:
            said = child.communicate(message, timeout=60)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise Failed("ssh-keygen did not end within 60 s", "policy")
        if child.returncode == 0:
            return True
        if b"illegal option" in said or b"unknown option" in said or b"nsupported operation" in said or b"usage: ssh-keygen" in said:
            return self.verified_here(sig, message)
        return False

    def verified_here(self, sig, message):
        self.own = True
        return sig.is_of(message)


class SignedWheel:
    """A wheel's file, which policies have accepted."""

    def __init__(self, path):
        self.path = path
        self.sha256, self.stat = self.read()

    def read(self):
        """The digest of the file, read from its disk now, and the state it had then."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as e:
            raise Failed("%s: %s" % (self.path, e.strerror), "policy")
        with open(file, "rb") as f:
            st = os.fstat(f.fileno())
            if not stat.S_ISREG(st.st_mode) or st.st_nlink != 1:
                raise Failed("%s is not a plain file" % self.path, "policy")
            sum = hashlib.sha256()
            for block in iter(lambda: f.read(1 << 20), b""):
                sum.update(block)
            return sum.hexdigest(), self.state(os.fstat(f.fileno()))

    @staticmethod
    def state(st):
        """The properties of a file of which every write changes one."""
        return (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)

    def must_be_unchanged(self):
        """Refuses a file that was exchanged after it was judged, or written to."""
        try:
            same = self.state(os.lstat(self.path)) == self.stat
        except OSError:
            same = False
        if not same:
            refuse("%s was changed while it was installed" % self.path)


def judge_wheel(rules, signed, name, sha256, folder, verifier=None):
    """Judges a wheel by all policies. verifier is what the driver has sent to verify bundles."""
    bundles = BundleVerifier(verifier)
    judges, signers = [Judge(policy, folder, bundles) for policy in rules], []
    for judge in judges:
        _, count = judge.judge(signed, name, sha256)
        signers.append(count)
    return {"signers": signers, "own": any(judge.own for judge in judges), "verifier": verifier["sha256"] if bundles.used else ""}


# The signed statement stays on the node, so that a rollback can judge the wheel again.


def store_signed(signed, wheel, sha256):
    """Keeps the statement and the signatures of a wheel, and its RECORD."""
    with zipfile.ZipFile(wheel) as z:
        (record,) = [n for n in z.namelist() if re.match(r"[^/]+\.dist-info/RECORD\Z", n)]
        text = z.read(record).decode("utf-8")
    os.makedirs(os.path.join(HOME, "signed"), mode=0o755, exist_ok=True)
    save_json(stored_path(sha256), dict(signed, record=text))


def judge_stored(rules, sha256, folder, find, verifier=None):
    """Judges a wheel again whose files are on the node. find returns where a file of its RECORD is
    now, None where it is not compared."""
    stored = load_json(stored_path(sha256)) if re.match(r"[0-9a-f]{64}\Z", sha256) else None
    if not isinstance(stored, dict) or not {"name", "statement", "signatures", "record"} <= set(stored):
        refuse("the version before was not signed, or its signatures are gone")
    result = judge_wheel(rules, stored, stored["name"], sha256, folder, verifier)
    if Statement(stored["statement"]).record != [hashlib.sha256(stored["record"].encode("utf-8")).hexdigest()]:
        refuse("the list of its files is not the signed one")
    for row in csv.reader(stored["record"].splitlines()):
        path = find(row[0]) if len(row) == 3 and row[1] else ""
        if path and not has_digest(path, row[1], "/scripts/" in row[0]):
            refuse("%s is not as it was signed" % row[0])
    return result


def has_digest(path, digest, script):
    """Whether a file has the digest of its RECORD; an installer changes the first line of scripts."""
    algorithm, _, want = digest.partition("=")
    if algorithm not in HASHES:
        return False
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError:
        return False
    forms = [data]
    if script:
        forms += [b"#!python" + data[data.find(end) + len(end) - 1:] for end in (b"\n", b"\n' '''\n") if end in data]
    return any(written(getattr(hashlib, algorithm)(form).digest()) == want for form in forms)
