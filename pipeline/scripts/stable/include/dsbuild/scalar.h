// Types of elements.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstddef>
#include <type_traits>

namespace at {

using c10::BFloat16;
using c10::Half;
using c10::ScalarType;
using c10::toString;

constexpr ScalarType kByte = ScalarType::Byte;
constexpr ScalarType kChar = ScalarType::Char;
constexpr ScalarType kShort = ScalarType::Short;
constexpr ScalarType kInt = ScalarType::Int;
constexpr ScalarType kLong = ScalarType::Long;
constexpr ScalarType kHalf = ScalarType::Half;
constexpr ScalarType kFloat = ScalarType::Float;
constexpr ScalarType kDouble = ScalarType::Double;
constexpr ScalarType kBool = ScalarType::Bool;
constexpr ScalarType kBFloat16 = ScalarType::BFloat16;
constexpr ScalarType kUInt8 = kByte;
constexpr ScalarType kInt8 = kChar;
constexpr ScalarType kInt16 = kShort;
constexpr ScalarType kInt32 = kInt;
constexpr ScalarType kInt64 = kLong;
constexpr ScalarType kFloat16 = kHalf;
constexpr ScalarType kFloat32 = kFloat;
constexpr ScalarType kFloat64 = kDouble;

// The type of a tensor's elements is a ScalarType here, where ATen has a TypeMeta.
inline ScalarType typeMetaToScalarType(ScalarType type) { return type; }

inline size_t elementSize(ScalarType type)
{
    const auto code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(type));
    return aoti_torch_dtype_element_size(code);
}

// The type in which sums of T are computed on a CPU or a GPU (ATen/AccumulateType.h).
template <class T, bool cuda>
struct AccumulateType {
    using type = T;
};
template <bool cuda>
struct AccumulateType<Half, cuda> {
    using type = float;
};
template <bool cuda>
struct AccumulateType<BFloat16, cuda> {
    using type = float;
};
template <>
struct AccumulateType<float, false> {
    using type = double;
};
template <class T, bool cuda>
using acc_type = typename AccumulateType<T, cuda>::type;

}  // namespace at
