// Package fakecuda proves without a GPU that an op built for torch's stable ABI and the same op built for
// torch's C++ ABI do the same on a GPU.
//
// What a GPU computes follows from two things: the device code, and the host's calls to CUDA. Both are
// compared between a wheel of --abi torch and a wheel of --abi stable:
//
//   - devicecode.py compares the device code of each kernel bit by bit, with everything that a launch
//     depends on.
//   - scenarios/ calls the functions of an op with some thousand arguments: sizes, types, memory layouts,
//     streams, devices, failing launches, invalid arguments. lib/ replaces CUDA's libraries: it has devices
//     and memory, runs no kernel, and records every call with every byte of its arguments. compare.py
//     compares the records.
//   - mutants/ break one function of torch's stable ABI each; the comparison must notice.
//
// It proves nothing about whether either wheel runs on hardware: make test-gpu does that.
package fakecuda
