// The current stream, guards of the current device, and checks of CUDA's calls.
#pragma once
#include <cuda_runtime.h>
#include <torch/csrc/stable/c/shim.h>

#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include <dsbuild/torch.h>

namespace c10::cuda {

// check throws torch's words about an error of CUDA's. They have no place of the sources in them.
inline void check(cudaError_t status)
{
    if (status == cudaSuccess) { return; }
    char* words = nullptr;
    torch_c10_cuda_check_msg(static_cast<int32_t>(status), "", "", 0, true, &words);
    std::string text = words ? words : cudaGetErrorString(status);
    if (words) { torch_c10_cuda_free_error_msg(words); }
    throw std::runtime_error(text);
}

inline int current_device()
{
    int device = -1;
    check(cudaGetDevice(&device));
    return device;
}

class CUDAStream {
public:
    explicit CUDAStream(cudaStream_t stream) : stream_(stream) {}
    operator cudaStream_t() const { return stream_; }
    cudaStream_t stream() const { return stream_; }

private:
    cudaStream_t stream_;
};

// getCurrentCUDAStream gives torch's current stream of a device, of the current one by default.
inline CUDAStream getCurrentCUDAStream(int device = -1)
{
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(
        aoti_torch_get_current_cuda_stream(device < 0 ? current_device() : device, &stream));
    return CUDAStream(static_cast<cudaStream_t>(stream));
}

// getStreamFromPool gives one of the streams that torch shares out in turn.
inline CUDAStream getStreamFromPool(bool high_priority = false, int device = -1)
{
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(
        torch_get_cuda_stream_from_pool(high_priority, device < 0 ? current_device() : device, &stream));
    return CUDAStream(static_cast<cudaStream_t>(stream));
}

// CUDAGuard makes a device the current one for as long as it lives.
class CUDAGuard {
public:
    explicit CUDAGuard(at::Device device)
    {
        STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_create_cuda_guard(device.index(), &guard_));
    }
    ~CUDAGuard() { aoti_torch_delete_cuda_guard(guard_); }
    CUDAGuard(const CUDAGuard&) = delete;
    CUDAGuard& operator=(const CUDAGuard&) = delete;

private:
    CUDAGuardHandle guard_ = nullptr;
};

class OptionalCUDAGuard {
public:
    explicit OptionalCUDAGuard(std::optional<at::Device> device)
    {
        if (device) { guard_.emplace(*device); }
    }

private:
    std::optional<CUDAGuard> guard_;
};

}  // namespace c10::cuda

namespace at::cuda {

using c10::cuda::CUDAGuard;
using c10::cuda::CUDAStream;
using c10::cuda::getCurrentCUDAStream;
using c10::cuda::getStreamFromPool;
using c10::cuda::OptionalCUDAGuard;

// getCurrentDeviceProperties describes the current device. CUDA is asked once for each.
inline cudaDeviceProp* getCurrentDeviceProperties()
{
    static std::mutex one_at_a_time;
    static std::map<int, cudaDeviceProp> known;
    const int device = c10::cuda::current_device();
    const std::lock_guard<std::mutex> held(one_at_a_time);
    const auto found = known.find(device);
    if (found != known.end()) { return &found->second; }
    cudaDeviceProp properties;
    c10::cuda::check(cudaGetDeviceProperties(&properties, device));
    return &known.emplace(device, properties).first->second;
}

namespace detail {

// canUse32BitIndexMath tells whether the place of every element of a tensor fits 32 bits.
inline bool canUse32BitIndexMath(const Tensor& tensor)
{
    if (tensor.numel() >= INT32_MAX) { return false; }
    if (tensor.numel() == 0) { return true; }
    int64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); d++) { last += (tensor.size(d) - 1) * tensor.stride(d); }
    return last < INT32_MAX;
}

}  // namespace detail
}  // namespace at::cuda

#define C10_CUDA_CHECK(call) ::c10::cuda::check(call)
#define AT_CUDA_CHECK C10_CUDA_CHECK
