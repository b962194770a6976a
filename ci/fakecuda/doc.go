// Package fakecuda proves without a GPU that an op over torch's stable ABI does on one what the op of
// torch's C++ interface does.
//
// What a GPU computes follows from two things: the device code, and what the host asks of CUDA. Both are
// compared between a wheel of --abi torch and a wheel of --abi stable:
//
//   - devicecode.py compares the device code of each kernel to the last bit, with everything that a launch
//     depends on.
//   - scenarios/ calls the functions of an op with some thousand arguments: sizes, types, places in memory,
//     streams, devices, refused launches, wrong arguments. lib/ stands in for CUDA's libraries: it has devices and
//     memory, runs no kernel, and records each call with each byte of each argument. compare.py compares the
//     records.
//   - mutants/ break one function of torch's stable ABI each; the comparison must notice.
//
// It proves nothing about whether either wheel runs on hardware: make test-gpu does that.
package fakecuda
