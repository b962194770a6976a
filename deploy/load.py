# Loads every op of the DeepSpeed that a node has, whoever installed it, and names
# all that do not. Writes nothing: no byte code either.
sys.dont_write_bytecode = True


def load_all(place):
    try:
        import deepspeed
    except Exception as e:
        raise Failed("import deepspeed fails: %s: %s" % (type(e).__name__, str(e)[:1000]))
    if plain(deepspeed.__version__) != plain(REQUEST["version"]):
        raise Failed("deepspeed.__version__ is %s, but %s is installed" % (deepspeed.__version__, REQUEST["version"]))
    for op in REQUEST["ops"]:
        emit({"op": op})
        attempt(lambda: load_op(op, place), "broken")


try:
    place = check_place()
except Failed:
    place = ""  # what look.py has said
if place:
    attempt(lambda: without_compiler(lambda: load_all(place)), "broken")
emit({"done": True})
