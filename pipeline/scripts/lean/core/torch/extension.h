// Stands before torch's own for a source that has to do with tensors and their methods alone.
#pragma once
#include <math.h> // the float overloads of ::sqrt and its like, as torch's own header brings them
#include <stdlib.h> // likewise ::abs
#include <ATen/core/Tensor.h>
#include <torch/version.h>

namespace torch {
using namespace at;
}
