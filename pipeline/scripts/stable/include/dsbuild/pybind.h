// The names of pybind11 that DeepSpeed's bindings use. Where pybind11 makes a module of Python,
// they register ops with torch's dispatcher (registry.h), and loader.py makes the module. No
// symbol of Python is used.
#pragma once
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>

#include <dsbuild/interpreter.h>
#include <dsbuild/lock.h>
#include <dsbuild/probe.h>
#include <dsbuild/registry.h>
#include <dsbuild/torch.h>

namespace pybind11 {

// gil_scoped_release gives back what stands in for the GIL (lock.h).
class gil_scoped_release {
public:
    gil_scoped_release() : depth_(dsbuild::Lock::give_all()) {}
    ~gil_scoped_release() { dsbuild::Lock::take_again(depth_); }
    gil_scoped_release(const gil_scoped_release&) = delete;
    gil_scoped_release& operator=(const gil_scoped_release&) = delete;

private:
    int depth_;
};

// tuple is a tuple of integers: a shape, or strides.
class tuple {
public:
    explicit tuple(std::vector<int64_t> values) : values_(std::move(values)) {}
    template <class T>
    T cast() const
    {
        return T(values_.begin(), values_.end());
    }

private:
    std::vector<int64_t> values_;
};

template <class... Guards>
struct call_guard {
};

template <class... Parameters>
struct init {
};

// arg names an argument: "x"_a, or "x"_a = 1.
struct arg {
    std::string name, value;  // value: as JSON, "" for none

    explicit arg(const char* text) : name(text) {}
    template <class T>
    arg operator=(const T& given) const
    {
        arg with = *this;
        if constexpr (std::is_same_v<T, bool>) {
            with.value = given ? "true" : "false";
        } else if constexpr (std::is_arithmetic_v<T>) {
            std::ostringstream text;
            text.precision(17);  // a double comes back as it was
            text << given;
            with.value = text.str();
        } else {
            with.value = dsbuild::quoted(given);
        }
        return with;
    }
};

namespace literals {
inline arg operator""_a(const char* text, size_t) { return arg(text); }
}  // namespace literals

// overload_cast chooses a function among those of one name by the types of its parameters.
template <class... Parameters>
struct Overload {
    template <class Returned>
    constexpr auto operator()(Returned (*function)(Parameters...)) const
    {
        return function;
    }
    template <class Returned, class Class>
    constexpr auto operator()(Returned (Class::*function)(Parameters...)) const
    {
        return function;
    }
};
template <class... Parameters>
inline constexpr Overload<Parameters...> overload_cast{};

}  // namespace pybind11

namespace dsbuild {

template <>
struct Value<pybind11::tuple> {
    using Carried = std::vector<int64_t>;
    static std::string schema() { return "int[]"; }
    static std::string name() { return "tuple int64"; }
    static pybind11::tuple read(Carried values) { return pybind11::tuple(std::move(values)); }
};

// read adds to a binding what its def says after the function, as pybind11 reads it: by type.
inline void read(Binding& binding, const char* doc) { binding.doc = doc; }
inline void read(Binding& binding, const pybind11::arg& argument)
{
    binding.names.push_back(argument.name);
    binding.defaults.push_back(argument.value);
}
inline void read(Binding& binding, pybind11::call_guard<pybind11::gil_scoped_release>) { binding.releases_gil = true; }

template <class... Extras>
Binding binding_of(const Extras&... extras)
{
    Binding binding;
    (read(binding, extras), ...);
    return binding;
}

// Signature takes a function apart. Of a method, Parameters are without the object.
template <class Function>
struct Signature : Signature<decltype(&Function::operator())> {
};
template <class R, class... P>
struct Signature<R (*)(P...)> {
    using Returned = R;
    using Parameters = std::tuple<P...>;
};
template <class R, class C, class... P>
struct Signature<R (C::*)(P...)> : Signature<R (*)(P...)> {
};
template <class R, class C, class... P>
struct Signature<R (C::*)(P...) const> : Signature<R (*)(P...)> {
};

// add registers a function whose parameters, after those of First, are in a tuple.
template <class... First, class Function, class... P>
std::string add(Registry& registry, const std::string& op, Function function, const Binding& binding, std::tuple<P...>*)
{
    return registry.add<typename Signature<Function>::Returned, First..., P...>(op, function, binding);
}

template <class Function>
constexpr typename Signature<Function>::Parameters* parameters_of()
{
    return nullptr;
}

}  // namespace dsbuild

namespace pybind11 {

class Module {
public:
    explicit Module(dsbuild::Registry& registry) : registry(registry) {}

    template <class F, class... Extras>
    Module& def(const char* name, F&& given, const Extras&... extras)
    {
        using Function = std::decay_t<F>;
        const auto told = dsbuild::add(
            registry, name, Function(given), dsbuild::binding_of(extras...), dsbuild::parameters_of<Function>());
        registry.tell("{\"function\": " + dsbuild::quoted(name) + ", " + told + "}");
        return *this;
    }

    dsbuild::Registry& registry;
};

// class_ binds a class. In Python its objects hold their address here, and its methods are ops
// called CLASS_METHOD that take the address first.
template <class T>
class class_ {
public:
    class_(Module& module, const char* name) : registry_(module.registry), name_(name)
    {
        dsbuild::bound<T> = name;
        const auto destroy = [](int64_t address) { delete reinterpret_cast<T*>(address); };
        const auto told = registry_.add<void, int64_t>(name_ + "__delete", destroy, {});
        registry_.tell("{\"class\": " + dsbuild::quoted(name_) + ", " + told + "}");
    }

    template <class... Parameters, class... Extras>
    class_& def(init<Parameters...>, const Extras&... extras)
    {
        const auto make = [](Parameters... given) { return reinterpret_cast<int64_t>(new T(given...)); };
        return tell("__init__",
                    registry_.add<int64_t, Parameters...>(name_ + "__new", make, dsbuild::binding_of(extras...)));
    }

    template <class F, class... Extras>
    class_& def(const char* name, F&& given, const Extras&... extras)
    {
        using Function = std::decay_t<F>;
        const auto op = name_ + "_" + name;
        const auto binding = dsbuild::binding_of(extras...);
        if constexpr (std::is_member_function_pointer_v<Function>) {
            // The object is a T, also where the method is that of a class below it.
            return tell(name,
                        dsbuild::add<T&>(
                            registry_, op, Function(given), binding, dsbuild::parameters_of<Function>()));
        } else {
            return tell(name,
                        dsbuild::add(registry_, op, Function(given), binding, dsbuild::parameters_of<Function>()));
        }
    }

private:
    class_& tell(const char* name, const std::string& told)
    {
        registry_.tell("{\"method\": " + dsbuild::quoted(name) + ", \"of\": " + dsbuild::quoted(name_) + ", " + told + "}");
        return *this;
    }

    dsbuild::Registry& registry_;
    std::string name_;
};

template <class T>
class enum_ {
public:
    enum_(Module& module, const char* name) : registry_(module.registry), name_(name)
    {
        dsbuild::bound<T> = name;
        registry_.tell("{\"enum\": " + dsbuild::quoted(name_) + "}");
    }
    enum_& value(const char* name, T value)
    {
        registry_.tell("{\"value\": " + dsbuild::quoted(name) + ", \"of\": " + dsbuild::quoted(name_) +
                       ", \"number\": " + std::to_string(static_cast<int64_t>(value)) + "}");
        return *this;
    }
    enum_& export_values()
    {
        registry_.tell("{\"export\": " + dsbuild::quoted(name_) + "}");
        return *this;
    }

private:
    dsbuild::Registry& registry_;
    std::string name_;
};

}  // namespace pybind11

namespace dsbuild {

// registered registers what a binding binds, and returns its description.
inline std::string registered(void (*bind)(pybind11::Module&))
{
    try {
        auto* registry = new Registry;  // its ops stay
        pybind11::Module module(*registry);
        add(*registry, "dsbuild_probe", &probe, {}, parameters_of<decltype(&probe)>());
        bind(module);
        return registry->description();
    } catch (const std::exception& failure) {
        return "{\"error\": " + quoted(failure.what()) + "}";
    }
}

}  // namespace dsbuild

namespace py = pybind11;

// An op asks for it before it gives the GIL back.
inline int PyGILState_Check() { return dsbuild::Lock::held(); }

// The loader calls dsbuild_register, the first time for all. It returns the description, or
// {"error": …}: a failure while a library is loaded would end the process.
#define PYBIND11_MODULE(name, module)                                                \
    static void dsbuild_bind(::pybind11::Module& module);                            \
    extern "C" __attribute__((visibility("default"))) const char* dsbuild_register() \
    {                                                                                \
        static const std::string told = ::dsbuild::registered(&dsbuild_bind);        \
        return told.c_str();                                                         \
    }                                                                                \
    static void dsbuild_bind(::pybind11::Module& module)
