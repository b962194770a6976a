// The probe: one op that every library registers, and that the loader calls before it hands out the
// others. It writes down what it was given of each kind of value, and the loader compares that with
// what it gave. A torch that hands over values in another way than it promises is refused there,
// and computes nothing wrong.
#pragma once
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <dsbuild/tensor.h>

namespace dsbuild {

// described_tensor names the size, the stride and the elements of a row of int64 on the CPU.
inline std::string described_tensor(const at::Tensor& tensor)
{
    if (tensor.scalar_type() != at::kLong || !tensor.is_cpu() || tensor.dim() != 1) { return "another tensor"; }
    std::ostringstream told;
    told << tensor.size(0) << '/' << tensor.stride(0);
    for (int64_t i = 0; i < tensor.numel(); i++) { told << ' ' << tensor.data_ptr<int64_t>()[i * tensor.stride(0)]; }
    return told.str();
}

inline std::string probe(const at::Tensor& tensor,
                         const std::vector<at::Tensor>& list,
                         const std::optional<at::Tensor>& absent,
                         double number,
                         int64_t integer,
                         bool truth,
                         const std::string& text)
{
    std::ostringstream told;
    told << described_tensor(tensor) << ", " << list.size() << " of " << described_tensor(list.at(0)) << ", "
         << (absent ? "there" : "absent") << ", " << number << ", " << integer << ", " << truth << ", " << text;
    return told.str();
}

}  // namespace dsbuild
