// The same names in the namespaces torch and c10, where sources look for them too.
#pragma once
#include <optional>

#include <dsbuild/factories.h>
#include <dsbuild/options.h>
#include <dsbuild/scalar.h>
#include <dsbuild/tensor.h>

namespace at {

using std::nullopt;
using std::optional;

}  // namespace at

namespace c10 {

using at::Device;
using at::IntArrayRef;
using at::TensorOptions;
using at::typeMetaToScalarType;
using std::nullopt;
using std::optional;

}  // namespace c10

namespace torch {

using at::Device;
using at::DeviceType;
using at::elementSize;
using at::empty;
using at::empty_like;
using at::from_blob;
using at::IntArrayRef;
using at::numel;
using at::ScalarType;
using at::Tensor;
using at::TensorOptions;
using at::typeMetaToScalarType;

using at::kBFloat16;
using at::kBool;
using at::kByte;
using at::kChar;
using at::kCPU;
using at::kCUDA;
using at::kDouble;
using at::kFloat;
using at::kFloat16;
using at::kFloat32;
using at::kFloat64;
using at::kHalf;
using at::kInt;
using at::kInt16;
using at::kInt32;
using at::kInt64;
using at::kInt8;
using at::kLong;
using at::kShort;
using at::kStrided;
using at::kUInt8;
using at::kXPU;

}  // namespace torch
