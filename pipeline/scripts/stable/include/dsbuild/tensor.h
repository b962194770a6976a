// at::Tensor: torch's stable tensor with the members of ATen's that ops use.
#pragma once
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/HeaderOnlyArrayRef.h>

#include <optional>
#include <type_traits>
#include <utility>

#include <dsbuild/check.h>
#include <dsbuild/options.h>
#include <dsbuild/scalar.h>

// torch's headers before 2.11 have it by its older name, without the words of the error.
#ifndef STABLE_TORCH_ERROR_CODE_CHECK
#define STABLE_TORCH_ERROR_CODE_CHECK TORCH_ERROR_CODE_CHECK
#endif

namespace at {

using IntArrayRef = torch::headeronly::HeaderOnlyArrayRef<int64_t>;

// DeprecatedType is what Tensor::type() gives.
struct DeprecatedType {
    ScalarType type;
    bool cuda;
    ScalarType scalarType() const { return type; }
    bool is_cuda() const { return cuda; }
};

class Tensor : public torch::stable::Tensor {
public:
    using Stable = torch::stable::Tensor;
    using Stable::Stable;
    Tensor() = default;
    Tensor(const Stable& other) : Stable(other) {}
    Tensor(Stable&& other) : Stable(std::move(other)) {}

    ScalarType dtype() const { return scalar_type(); }
    DeprecatedType type() const { return {scalar_type(), is_cuda()}; }
    TensorOptions options() const { return TensorOptions(scalar_type()).device(device()).layout(layout()); }
    Layout layout() const // which torch's headers have only later, as is_pinned
    {
        int32_t number;
        STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_layout(get(), &number));
        return static_cast<Layout>(number);
    }
    int64_t ndimension() const { return dim(); }
    int64_t size(int64_t d) const { return Stable::size(d < 0 ? d + dim() : d); }
    size_t itemsize() const { return element_size(); }
    size_t nbytes() const { return static_cast<size_t>(numel()) * element_size(); }
    bool is_xpu() const { return device().type() == DeviceType::XPU; }
    bool is_pinned() const
    {
        StableIValue stack[] = {torch::stable::detail::from(static_cast<const Stable&>(*this)),
                                torch::stable::detail::from(std::nullopt)};
        STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::is_pinned", "", stack, TORCH_ABI_VERSION));
        return torch::stable::detail::to<bool>(stack[0]);
    }

    bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const
    {
        return format == MemoryFormat::ChannelsLast ? is_channels_last() : Stable::is_contiguous();
    }

    void* data_ptr() const { return Stable::data_ptr(); }
    template <class T>
    T* data_ptr() const
    {
        constexpr auto wanted = c10::CppTypeToScalarType<std::remove_const_t<T>>();
        const auto found = scalar_type();
        TORCH_CHECK(found == wanted, "expected scalar type ", toString(wanted), " but found ", toString(found));
        return static_cast<T*>(data_ptr());
    }
    template <class T>
    T* data() const
    {
        return data_ptr<T>();
    }

    Tensor contiguous() const
    {
        return Stable::is_contiguous() ? *this : Tensor(torch::stable::contiguous(*this));
    }
    Tensor to(Device device, bool non_blocking = false, bool copy = false) const
    {
        return torch::stable::to(*this, device, non_blocking, copy);
    }
    Tensor to(ScalarType type, bool non_blocking = false, bool copy = false) const
    {
        return torch::stable::to(*this, type, std::nullopt, std::nullopt, std::nullopt, non_blocking, copy);
    }
    Tensor clone() const { return torch::stable::clone(*this); }
    Tensor view(IntArrayRef size) const { return torch::stable::view(*this, size); }
    Tensor select(int64_t d, int64_t index) const { return torch::stable::select(*this, d, index); }
    Tensor slice(int64_t d, std::optional<int64_t> start, std::optional<int64_t> end, int64_t step = 1) const
    {
        return called("aten::slice", "Tensor", d, start, end, step);
    }
    Tensor detach() const { return called("aten::detach", ""); }
    Tensor cpu() const { return to(Device(DeviceType::CPU)); }
    Tensor copy_(const Tensor& source, bool non_blocking = false)
    {
        torch::stable::copy_(*this, source, non_blocking);
        return *this;
    }

private:
    // called is the result of an operator of torch's that torch/csrc/stable/ops.h lacks, called
    // as those are that it has.
    template <class... More>
    Tensor called(const char* name, const char* overload, const More&... more) const
    {
        StableIValue stack[] = {torch::stable::detail::from(static_cast<const Stable&>(*this)),
                                torch::stable::detail::from(more)...};
        STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION));
        return torch::stable::detail::to<Stable>(stack[0]);
    }

    // The strides of a dense tensor (n, c, h, w) whose channels lie beside each other. As in
    // ATen, the stride of a dimension of one element counts for nothing.
    bool is_channels_last() const
    {
        if (dim() != 4) { return false; }
        int64_t expected = 1;
        for (int64_t d : {1, 3, 2, 0}) {
            if (size(d) == 1) { continue; }
            if (stride(d) != expected) { return false; }
            expected *= size(d);
        }
        return true;
    }
};

inline int64_t numel(const Tensor& tensor) { return tensor.numel(); }

inline std::optional<Device> device_of(const Tensor& tensor)
{
    return tensor.defined() ? std::optional<Device>(tensor.device()) : std::nullopt;
}

}  // namespace at
