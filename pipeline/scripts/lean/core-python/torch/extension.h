// Stands before torch's own for a source that binds functions on tensors to Python, and
// calls none of torch's.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

namespace torch {
using namespace at;
}
