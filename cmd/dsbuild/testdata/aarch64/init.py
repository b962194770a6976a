"""The first process of a machine that kernel.sh made: it mounts the disk /dev/vda at /tmp,
runs a program of Python, and switches the machine off.

usage: init.py PROGRAM ARGUMENT...      both are words of the kernel's command line
"""
import ctypes
import os
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)

for source, where, kind in (("proc", "/proc", "proc"), ("sysfs", "/sys", "sysfs"), ("devtmpfs", "/dev", "devtmpfs"), ("/dev/vda", "/tmp", "ext4")):
    if libc.mount(source.encode(), where.encode(), kind.encode(), 0, None):
        print(f"{where}: {os.strerror(ctypes.get_errno())}")
print("pages of", os.sysconf("SC_PAGESIZE"), "bytes", flush=True)
environment = {
    "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "DS_ACCELERATOR": "cuda", "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPATH": os.path.dirname(os.path.abspath(__file__)) + "/wheel:/site", "LD_LIBRARY_PATH": "/nvidia", "DSBUILD_CPU": "armv8-a", "DSBUILD_OUT": "/tmp",
}
done = subprocess.run([sys.executable, "-W", "ignore", *sys.argv[1:]], env=environment, stdin=subprocess.DEVNULL)
print("exit code", done.returncode, flush=True)
os.sync()
libc.reboot(0x4321FEDC)  # LINUX_REBOOT_CMD_POWER_OFF
