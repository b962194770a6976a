// TORCH_CHECK and its kin. As torch's own, they throw with the caller's text alone, and without
// one they name the condition. torch's STD_TORCH_CHECK would add file and line.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace dsbuild {

template <class... Parts>
[[noreturn]] void fail(const char* condition, const Parts&... parts)
{
    std::ostringstream text;
    if constexpr (sizeof...(Parts) == 0) {
        text << "Expected " << condition << " to be true, but got false.";
    } else {
        (text << ... << parts);
    }
    throw std::runtime_error(text.str());
}

}  // namespace dsbuild

#define TORCH_CHECK(condition, ...) \
    if (!(condition)) { ::dsbuild::fail(#condition __VA_OPT__(, ) __VA_ARGS__); }
// The loader raises the error that the text names.
#define TORCH_CHECK_NOT_IMPLEMENTED(condition, ...) \
    TORCH_CHECK(condition, "NotImplementedError: " __VA_OPT__(, ) __VA_ARGS__)
#define AT_ASSERTM TORCH_CHECK
#define AT_ASSERT TORCH_CHECK
#define AT_CHECK TORCH_CHECK
#define AT_ERROR(...) ::dsbuild::fail("" __VA_OPT__(, ) __VA_ARGS__)
