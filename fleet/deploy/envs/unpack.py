# Compares a Python that was just unpacked with its archive, and renames it to its final name. That
# Python itself runs this program. python.py comes before this file.
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
