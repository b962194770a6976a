// Stands before torch's own for a source that has to do with tensors and their methods alone.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/version.h>

namespace torch {
using namespace at;
}
