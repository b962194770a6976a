"""Records the scenarios of an op: record.py PYTHON LIBRARIES KERNELS WHEEL OP RECORD [MUTANT.so]

PYTHON has torch, LIBRARIES is build.py's folder, KERNELS the table of devicecode.py, WHEEL an
unpacked wheel, by an absolute path. The device is an A100, two of them; FAKECUDA_CAPABILITY=90 makes it an H100."""

import os
import pathlib
import subprocess
import sys

def record(python, libraries, kernels, wheel, op, path, *mutant):
    # torch's libraries find each other by RPATH, which comes before LD_LIBRARY_PATH, but not before an already
    # loaded library with the same soname.
    stand_ins = (str(file) for name in ("cudart", "cublas", "curand") for file in pathlib.Path(libraries).glob(f"lib{name}.so.*"))
    preload = [*mutant, *stand_ins]
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(preload),
        "LD_LIBRARY_PATH": ":".join(filter(None, (libraries, os.environ.get("LD_LIBRARY_PATH")))),
        "FAKECUDA_RECORD": path,
        "FAKECUDA_KERNELS": kernels,
        "FAKECUDA_DEVICES": "2",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "DISABLE_ADDMM_CUDA_LT": "1",
    }
    run = pathlib.Path(__file__).resolve().parent / "scenarios/run.py"
    return subprocess.run([python, run, wheel, op], env=environment).returncode


if __name__ == "__main__":
    sys.exit(record(*sys.argv[1:]))
