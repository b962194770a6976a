# Makes a Python that has just been unpacked ready for use, by one rename. It runs with this
# Python itself. python.py goes before it.
import shutil

WORK, FINAL = REQUEST["work"], REQUEST["place"]
lines, old = sorted(list_tree(os.path.join(WORK, "tree")).values()), WORK + ".old"
whole = tree_of(lines) == REQUEST["tree"]
if whole:
    with open(os.path.join(WORK, LIST), "wb") as f:
        f.writelines(lines)
    if not os.path.isdir(FINAL) or altered_python(FINAL, REQUEST["tree"]):  # else another run was faster
        if os.path.isdir(FINAL):
            os.rename(FINAL, old)
        os.rename(WORK, FINAL)
    for path in (WORK, old):
        shutil.rmtree(path, ignore_errors=True)
emit({"ready": whole})
