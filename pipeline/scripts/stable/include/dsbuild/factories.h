// Functions that make tensors.
#pragma once
#include <torch/csrc/stable/ops.h>

#include <initializer_list>
#include <vector>

#ifdef USE_CUDA
#include <cuda_runtime_api.h>
#endif

#include <dsbuild/check.h>
#include <dsbuild/options.h>
#include <dsbuild/tensor.h>

namespace at {

inline Tensor empty(IntArrayRef size, const TensorOptions& options = {})
{
    const auto pinned = options.pinned_memory() ? std::optional<bool>(true) : std::nullopt;
    return torch::stable::empty(size, options.dtype(), options.layout(), options.device(), pinned);
}
inline Tensor empty(std::initializer_list<int64_t> size, const TensorOptions& options = {})
{
    return empty(IntArrayRef(size.begin(), size.size()), options);
}

inline Tensor empty_like(const Tensor& tensor) { return torch::stable::empty_like(tensor); }

// from_blob makes a tensor of memory that stays the caller's. As in ATen, a device without an
// index becomes the one where the memory lies.
inline Tensor from_blob(void* data, IntArrayRef size, IntArrayRef strides, const TensorOptions& options = {})
{
#ifdef USE_CUDA
    // Without a driver torch's C function ends the process, where ATen throws.
    int devices = 0;
    if (options.device().type() == DeviceType::CUDA) {
        const auto status = cudaGetDeviceCount(&devices);
        TORCH_CHECK(status == cudaSuccess, cudaGetErrorString(status));
    }
#endif
    // torch::stable::from_blob calls a second version of this function, which reports success where it made nothing.
    const auto device = options.device();
    const auto number = [](auto value) { return torch::stable::detail::to<int32_t>(torch::stable::detail::from(value)); };
    AtenTensorHandle made;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(
        data, size.size(), size.data(), strides.data(), 0, number(options.dtype()), number(device.type()), device.index(), &made));
    return Tensor(made);
}
inline Tensor from_blob(void* data, IntArrayRef size, const TensorOptions& options = {})
{
    std::vector<int64_t> strides(size.size());
    int64_t elements = 1;
    for (size_t d = size.size(); d-- > 0;) {
        strides[d] = elements;
        elements *= size[d] > 0 ? size[d] : 1;  // as ATen
    }
    return from_blob(data, size, IntArrayRef(strides.data(), strides.size()), options);
}
inline Tensor from_blob(void* data, int64_t elements, const TensorOptions& options = {})
{
    return from_blob(data, IntArrayRef(&elements, 1), options);
}

}  // namespace at
