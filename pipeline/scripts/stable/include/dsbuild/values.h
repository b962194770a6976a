// How values cross the dispatcher: for each type of an argument or a result the type that torch's
// stable ABI carries for it, its name in a schema, and its name for the loader, which checks
// the arguments of a call by it as pybind11 does (loader.py).
#pragma once
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <dsbuild/check.h>
#include <dsbuild/tensor.h>

namespace dsbuild {

template <class T>
using Bare = std::remove_cv_t<std::remove_reference_t<T>>;

// bound is the name in Python of a class or an enumeration that the op binds.
template <class T>
inline std::string bound;

// Value<T>: Carried is what torch carries, schema and name say what it is, read makes an argument,
// write a result. The general case is a class that the op binds: its address.
template <class T, class = void>
struct Value {
    static_assert(std::is_class_v<T>, "no value of this type crosses the dispatcher");
    using Carried = int64_t;
    static std::string schema() { return "int"; }
    static std::string name() { return "class " + bound<T>; }
    static T* read(int64_t address) { return reinterpret_cast<T*>(address); }
};

template <>
struct Value<at::Tensor> {
    using Carried = torch::stable::Tensor;
    static std::string schema() { return "Tensor"; }
    static std::string name() { return "Tensor"; }
    static at::Tensor read(Carried tensor) { return tensor; }
    static Carried write(const at::Tensor& tensor) { return tensor; }
};

template <>
struct Value<bool> {
    using Carried = bool;
    static std::string schema() { return "bool"; }
    static std::string name() { return "bool"; }
    static bool read(bool value) { return value; }
    static bool write(bool value) { return value; }
};

template <class T>
struct Value<T, std::enable_if_t<std::is_integral_v<T>>> {
    using Carried = int64_t;
    static std::string schema() { return "int"; }
    static std::string name()
    {
        return (std::is_signed_v<T> ? "int" : "uint") + std::to_string(8 * sizeof(T));
    }
    static T read(int64_t value) { return static_cast<T>(value); }
    static int64_t write(T value) { return static_cast<int64_t>(value); }
};

template <class T>
struct Value<T, std::enable_if_t<std::is_enum_v<T>>> {
    using Carried = int64_t;
    static std::string schema() { return "int"; }
    static std::string name() { return "enum " + bound<T>; }
    static T read(int64_t value) { return static_cast<T>(value); }
    static int64_t write(T value) { return static_cast<int64_t>(value); }
};

template <class T>
struct Value<T, std::enable_if_t<std::is_floating_point_v<T>>> {
    using Carried = double;
    static std::string schema() { return "float"; }
    static std::string name() { return "float"; }
    static T read(double value) { return static_cast<T>(value); }
    static double write(T value) { return value; }
};

template <>
struct Value<std::string> {
    using Carried = std::string;
    static std::string schema() { return "str"; }
    static std::string name() { return "str"; }
    static std::string read(std::string text) { return text; }
    static std::string write(std::string text) { return text; }
};

// The text lives for as long as the call.
template <>
struct Value<const char*> : Value<std::string> {
};

template <class T>
struct Value<std::vector<T>> {
    using Carried = std::vector<typename Value<T>::Carried>;
    static std::string schema() { return Value<T>::schema() + "[]"; }
    static std::string name() { return "list " + Value<T>::name(); }
    static std::vector<T> read(const Carried& carried)
    {
        std::vector<T> values;
        values.reserve(carried.size());
        for (const auto& one : carried) { values.push_back(Value<T>::read(one)); }
        return values;
    }
    static Carried write(const std::vector<T>& values)
    {
        Carried carried;
        carried.reserve(values.size());
        for (const auto& one : values) { carried.push_back(Value<T>::write(one)); }
        return carried;
    }
};

template <class T>
struct Value<std::optional<T>> {
    using Carried = std::optional<typename Value<T>::Carried>;
    static std::string schema() { return Value<T>::schema() + "?"; }
    static std::string name() { return "optional " + Value<T>::name(); }
    static std::optional<T> read(const Carried& carried)
    {
        return carried ? std::optional<T>(Value<T>::read(*carried)) : std::nullopt;
    }
    static Carried write(const std::optional<T>& value)
    {
        return value ? Carried(Value<T>::write(*value)) : std::nullopt;
    }
};

// Argument is a parameter of a bound function. take reads what the dispatcher brought, give hands
// it to the function.
template <class Parameter>
struct Argument {
    using Type = std::conditional_t<std::is_same_v<Bare<Parameter>, const char*>,
                                    const char*,
                                    std::remove_cv_t<std::remove_pointer_t<Bare<Parameter>>>>;
    using Crossing = Value<Type>;
    using Stored = decltype(Crossing::read(std::declval<typename Crossing::Carried>()));

    static Stored take(StableIValue value)
    {
        return Crossing::read(torch::stable::detail::to<typename Crossing::Carried>(value));
    }
    static decltype(auto) give(Stored& stored)
    {
        if constexpr (std::is_same_v<Type, const char*>) {
            return stored.c_str();
        } else if constexpr (!std::is_pointer_v<Stored>) {
            return static_cast<Stored&>(stored);
        } else if constexpr (std::is_pointer_v<Bare<Parameter>>) {
            return Stored(stored);
        } else {
            return *stored;
        }
    }
};

// Result is the result of a bound function.
template <class T>
struct Result {
    using Crossing = Value<Bare<T>>;
    static std::string schema() { return Crossing::schema(); }
    static std::string name() { return Crossing::name(); }
    static void put(StableIValue* stack, const Bare<T>& value)
    {
        stack[0] = torch::stable::detail::from<typename Crossing::Carried>(Crossing::write(value));
    }
};

template <>
struct Result<void> {
    static std::string schema() { return "()"; }
    static std::string name() { return "None"; }
};

}  // namespace dsbuild
