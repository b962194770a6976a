# A probe's errand: the environments of a node. place.py goes before it.


def room():
    """Bytes that this user may still write where the environments are."""
    place = ROOT
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    return free(place), os.access(place, os.W_OK)


def leftovers():
    """Whether files of a run that was cut off are there."""
    own, names = listed(HOME), listed(PLACE)
    folders = [n for n in names if os.path.isdir(os.path.join(PLACE, n)) and not os.path.islink(os.path.join(PLACE, n))]
    return any(n == "inbox" or n.startswith("run-") for n in own) or "change.json" in names or not all(mark_of(n) for n in folders)


bytes_free, writable = room()
emit({"looked": {"current": told(target(CURRENT)), "previous": told(target(PREVIOUS)), "ready": [d for d in REQUEST["digests"] if whole_of(d)],
                 "have": stored(REQUEST["files"]), "free": bytes_free, "writable": writable, "leftovers": leftovers(), "place": PLACE}})
