// Where a tensor lies and what it holds.
#pragma once
#include <torch/csrc/stable/device.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/Layout.h>
#include <torch/headeronly/core/MemoryFormat.h>

#include <optional>

#include <dsbuild/scalar.h>

namespace at {

using torch::headeronly::DeviceType;
using torch::headeronly::kCPU;
using torch::headeronly::kCUDA;
using torch::headeronly::kStrided;
using torch::headeronly::kXPU;
using torch::headeronly::Layout;
using torch::headeronly::MemoryFormat;
using torch::stable::Device;

// TensorOptions are the options of a tensor to be made. What is not set is as in ATen: float, on
// the CPU, strided.
class TensorOptions {
public:
    TensorOptions() = default;
    TensorOptions(ScalarType type) : type_(type) {}
    TensorOptions(Device device) : device_(device) {}
    TensorOptions(DeviceType device) : device_(Device(device)) {}

    TensorOptions dtype(ScalarType type) const
    {
        auto changed = *this;
        changed.type_ = type;
        return changed;
    }
    TensorOptions device(Device device) const
    {
        auto changed = *this;
        changed.device_ = device;
        return changed;
    }
    TensorOptions device(DeviceType type, int32_t index) const { return device(Device(type, index)); }
    TensorOptions layout(Layout layout) const
    {
        auto changed = *this;
        changed.layout_ = layout;
        return changed;
    }
    TensorOptions pinned_memory(bool pinned) const
    {
        auto changed = *this;
        changed.pinned_ = pinned;
        return changed;
    }
    // An op's tensors come without a gradient, whether they are asked for one or not.
    TensorOptions requires_grad(bool) const { return *this; }

    ScalarType dtype() const { return type_; }
    Device device() const { return device_; }
    Layout layout() const { return layout_; }
    bool pinned_memory() const { return pinned_; }

private:
    ScalarType type_ = ScalarType::Float;
    Device device_ = Device(DeviceType::CPU);
    Layout layout_ = Layout::Strided;
    bool pinned_ = false;
};

}  // namespace at
