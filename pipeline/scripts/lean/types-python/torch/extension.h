// Stands before torch's own: tensors, operators and their bindings to Python, without
// the modules, optimizers and data loaders of the C++ front end.
#pragma once
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>
