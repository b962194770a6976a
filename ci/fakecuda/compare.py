"""Compare two records of the same scenarios: compare.py [--other-torch] FIRST SECOND

Print JSON, and exit with 1 if they differ.

Launches of the op's kernels are counted, torch's are not. Each case's calls with an effect are compared, with
every byte of every launch argument, and its result or error. Queries ("ask") are not compared: one interface of
torch makes more of them than the other.

What is never read or differs between runs is ignored: host addresses, the bytes of an empty struct, the parts of
multi_tensor_apply's lists that a launch does not read, the order of consecutive frees.

--other-torch compares runs of two releases of torch: device addresses by the order of their appearance in a case,
and without torch's own calls (its kernels, its allocator)."""

import argparse
import collections
import itertools
import json
import re
import struct
import sys

LAUNCH = re.compile(r"call (launch\w*) (\S+) grid=(\d+)(\S+ block=\S+ shared=\d+ stream=\S+ device=\d+) arguments(.*)")
KERNEL_OF_TORCH = re.compile(r"at6native|at_cuda_detail")
OF_TORCH = re.compile(KERNEL_OF_TORCH.pattern + r"|^call (malloc|free|memset|hostAlloc|memcpy|streamSynchronize|cublasSetWorkspace)\b")
DEVICE_ADDRESSES = range(0x600000000000, 0x650000000000)
ADDRESS_IN_TEXT = re.compile(r"\b(?:0x)?(6[0-4][0-9a-f]{10})\b")

# TensorListMetadata<n> of csrc/adam/multi_tensor_apply.cuh: n arrays of addresses, sizes (64 bits; 32 in
# csrc/lion), for each of 320 blocks its tensor (a byte) and its chunk (32 bits), and the first tensor's number.
BLOCKS = 320
TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}

Case = collections.namedtuple("Case", "name calls result")


def read(path):
    cases = []
    with open(path) as lines:
        for line in map(str.rstrip, lines):
            kind, _, rest = line.partition(" ")
            if kind == "case":
                cases.append(Case(rest, [], []))
            elif cases and kind == "call":
                cases[-1].calls.append(line)
            elif cases and kind in ("result", "error"):
                cases[-1].result.append(line)
    return cases


def read_by_launch(lists, data, blocks):
    """Return what a launch with this number of blocks reads of a TensorListMetadata."""
    most = TENSORS[lists]
    at = lists * most * 8
    addresses = [struct.unpack_from(f"<{most}Q", data, i * most * 8) for i in range(lists)]
    wide = len(data) == (at + most * 8 + BLOCKS * 5 + 4 + 7) // 8 * 8
    sizes = struct.unpack_from(f"<{most}{'q' if wide else 'i'}", data, at)
    at += most * (8 if wide else 4)
    tensor_of, chunk_of = data[at : at + BLOCKS], struct.unpack_from(f"<{BLOCKS}i", data, at + BLOCKS)
    (first,) = struct.unpack_from("<i", data, at + BLOCKS * 5)
    used = sorted(set(tensor_of[:blocks]))
    return [first, list(zip(tensor_of[:blocks], chunk_of[:blocks])), [(t, sizes[t], *(f"0x{a[t]:x}" for a in addresses)) for t in used]]


def argument(value):
    """Return a launch argument, or "host" for a host address."""
    if len(value) == 16:
        (address,) = struct.unpack("<Q", bytes.fromhex(value))
        if address in DEVICE_ADDRESSES:
            return f"0x{address:x}"
        if 0x550000000000 <= address < 0x570000000000 or 0x7E0000000000 <= address < 0x800000000000:
            return "host"
    return value


def understood(line):
    """Return a call without the bytes that are never read."""
    match = LAUNCH.fullmatch(line)
    if not match:
        return line
    how, kernel, grid, rest, values = match.groups()
    lists = re.search(r"TensorListMetadataILi(\d)EE", kernel)
    arguments = []
    for value in values.split():
        if lists and len(value) > 4000:
            arguments.append(read_by_launch(int(lists[1]), bytes.fromhex(value), int(grid)))
        elif len(value) == 2 and "Functor" in kernel:
            arguments.append("empty struct")
        else:
            arguments.append(argument(value))
    return f"call {how} {kernel} grid={grid}{rest} arguments {arguments}"


def in_order(calls):
    """Yield the calls, with consecutive frees sorted."""
    for free, group in itertools.groupby(calls, key=lambda call: call.startswith("call free ")):
        yield from sorted(group) if free else group


def without_torch(calls, result):
    """Return calls and result in a form that two releases of torch share."""
    numbers = {}

    def numbered(text):
        return ADDRESS_IN_TEXT.sub(lambda m: f"@{numbers.setdefault(m[1], len(numbers))}", text)

    # torch 2.11 drops the message and the type of an error that crosses its stable ABI
    if any("API call failed" in r for r in result):
        result = ["error"]
    return [numbered(c) for c in calls if not OF_TORCH.search(c)], [numbered(r) for r in result]


def first_line(result):
    """Return a result unchanged, or an error's type and first line without the place in torch's sources."""
    if not result or not result[0].startswith("error "):
        return result
    kind, _, text = result[0].removeprefix("error ").partition(": ")
    text = re.sub(r"^.* INTERNAL ASSERT FAILED at .*?, please report a bug to PyTorch\. ", "", text.split("\\n")[0])
    return ["error", kind, re.sub(r" *\((originally from|Could this error message be improved) ?.*\)$", "", text).strip()]


def compare(first, second, other_torch):
    counts, kernels, differences = collections.Counter(), collections.Counter(), []
    for one, other in itertools.zip_longest(first, second):
        if one is None or other is None or one.name != other.name:
            differences.append(f"the cases part at {one and one.name!r} and {other and other.name!r}")
            break
        launches = [m for m in map(LAUNCH.fullmatch, one.calls) if m and not KERNEL_OF_TORCH.search(m[2])]
        kernels.update(m[2] for m in launches)
        counts.update(cases=1, calls=len(one.calls), launches=len(launches), errors=sum(r.startswith("error ") for r in one.result))
        counts["launches with unknown arguments"] += sum(m[5] == " ?" for m in launches)
        a, b = ([*in_order(map(understood, c.calls))] for c in (one, other))
        a_result, b_result = one.result, other.result
        if other_torch:
            (a, a_result), (b, b_result) = without_torch(a, a_result), without_torch(b, b_result)
        if a != b:
            parted = next((pair for pair in itertools.zip_longest(a, b) if pair[0] != pair[1]))
            differences.append(f"{one.name}: {len(a)} and {len(b)} calls; {str(parted[0])[:300]} and {str(parted[1])[:300]}")
        elif first_line(a_result) != first_line(b_result):
            differences.append(f"{one.name}: {str(a_result)[:300]} and {str(b_result)[:300]}")
    return {**counts, "kernels": sorted(kernels), "differences": differences}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other-torch", action="store_true")
    parser.add_argument("first")
    parser.add_argument("second")
    options = parser.parse_args()
    compared = compare(read(options.first), read(options.second), options.other_torch)
    json.dump(compared, sys.stdout, indent=1)
    sys.exit(1 if compared["differences"] else 0)
