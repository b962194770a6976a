# The part of an agent that judges a wheel by a policy. SIGNING is the source of sshsig.py and
# check.py, which a node without a policy does not compile.
#
# deploy/changes/changes.py comes before this file; the agent that follows defines HOME.
NODE_POLICY = "/etc/dsbuild/policy.json"


def load_signing():
    """Compiles SIGNING, in a name space of its own, and takes what agents call."""
    if "judge_wheel" not in globals():
        own = dict(globals())
        exec(SIGNING, own)
        globals().update((name, own[name]) for name in ("SignedWheel", "judge_stored", "judge_wheel", "read_policies", "refuse", "store_signed"))


def policies_for(order):
    """The policies that hold for an order: the driver's, and those that the node has."""
    own = [path for path in (NODE_POLICY, os.path.join(HOME, "policy.json")) if exists(path)]
    if order["policy"] is None and not own:
        return []
    load_signing()
    return read_policies(order["policy"], own)


def stored_path(sha256):
    """Where the node keeps the statement and the signatures of a wheel."""
    return os.path.join(HOME, "signed", sha256 + ".json")


def forget_signed(kept):
    """Removes the statements and signatures of all wheels except those with these digests."""
    folder = os.path.join(HOME, "signed")
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        if name[:-len(".json")] not in kept:
            sweep(os.path.join(folder, name))
