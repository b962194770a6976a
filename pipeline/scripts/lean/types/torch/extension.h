// Stands before torch's own for a source that binds nothing to Python: tensors and
// operators, without the modules, optimizers and data loaders of the C++ front end.
#pragma once
#include <math.h> // the float overloads of ::sqrt and its like, as torch's own header brings them
#include <stdlib.h> // likewise ::abs
#include <torch/types.h>
#include <torch/version.h>
