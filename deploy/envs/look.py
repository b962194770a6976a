# A probe's errand: the environments of a node. place.py goes before it.


def room():
    """Bytes that this user may still write where the environments are."""
    place = ROOT
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    return free(place), os.access(place, os.W_OK)


bytes_free, writable = room()
emit({"looked": {"current": told(target(CURRENT)), "previous": told(target(PREVIOUS)), "ready": [d for d in REQUEST["digests"] if whole_of(d)],
                 "have": stored(REQUEST["files"]), "free": bytes_free, "writable": writable, "place": PLACE}})
