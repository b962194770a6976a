// Functions whose arguments are tuples and optional values, bound as DeepSpeed binds its own.
#include <torch/extension.h>

#include <sstream>

static std::string shape(py::tuple sizes)
{
    std::ostringstream told;
    for (const auto size : sizes.cast<std::vector<int64_t>>()) { told << size << ' '; }
    return told.str();
}

static std::string given(std::optional<torch::Tensor> tensor, std::optional<int64_t> number, std::optional<double> real)
{
    std::ostringstream told;
    told << (tensor ? tensor->numel() : -1) << ' ' << number.value_or(-1) << ' ' << real.value_or(-1);
    return told.str();
}

static std::optional<torch::Tensor> same(std::optional<torch::Tensor> tensor) { return tensor; }

static int64_t present(const std::vector<std::optional<torch::Tensor>>& tensors)
{
    int64_t count = 0;
    for (const auto& tensor : tensors) { count += tensor.has_value(); }
    return count;
}

struct counter {
    explicit counter(int first) : next(first) {}
    int step(int by) { return next += by; }
    int next;
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.def("shape", &shape, "tells a tuple", py::arg("sizes"));
    m.def("given", &given);
    m.def("same", &same);
    m.def("present", &present);
    py::class_<counter>(m, "counter")
        .def(py::init<int>(), "counts", py::arg("first") = 3)
        .def("step", &counter::step, py::arg("by") = 1);
}
