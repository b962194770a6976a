// What an op's library registers with torch's dispatcher, and its description for the loader.
#pragma once
#include <torch/csrc/stable/library.h>

#include <exception>
#include <functional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <dsbuild/lock.h>
#include <dsbuild/values.h>

#define DSBUILD_TEXT_OF(name) #name
#define DSBUILD_TEXT(name) DSBUILD_TEXT_OF(name)

namespace dsbuild {

// quoted writes a text as JSON.
inline std::string quoted(const std::string& text)
{
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') { out += '\\'; }
        out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return out + "\"";
}

// joined writes a list as JSON.
inline std::string joined(const std::vector<std::string>& parts)
{
    std::string out = "[";
    for (size_t i = 0; i < parts.size(); i++) { out += (i ? ", " : "") + parts[i]; }
    return out + "]";
}

// Binding is what a def says beside the function.
struct Binding {
    std::string doc;
    std::vector<std::string> names;     // of the last arguments; none: they have no names
    std::vector<std::string> defaults;  // of the same, as JSON; "" for none
    bool releases_gil = false;          // call_guard<gil_scoped_release>
};

// Kernel runs a bound function on what torch has put onto the stack.
using Kernel = std::function<void(StableIValue*)>;

// Kernels gives kernels to torch, which calls them by a pointer to a function, without any data.
// So there is a function for each kernel that an op may have, with a place for what it runs.
class Kernels {
public:
    using Pointer = void (*)(StableIValue*, uint64_t, uint64_t);

    static Pointer add(Kernel kernel)
    {
        TORCH_CHECK(used_ < most, "the op binds more than ", most, " functions");
        places_[used_] = std::move(kernel);
        return pointer(used_++, std::make_index_sequence<most>{});
    }

private:
    static constexpr size_t most = 128;

    template <size_t Place>
    static void run(StableIValue* stack, uint64_t, uint64_t)
    {
        places_[Place](stack);
    }
    template <size_t... Place>
    static Pointer pointer(size_t place, std::index_sequence<Place...>)
    {
        static constexpr Pointer all[] = {&run<Place>...};
        return all[place];
    }

    static inline Kernel places_[most];
    static inline size_t used_ = 0;
};

// kernel_of makes the kernel of a function.
template <class Returned, class... Parameters, class Function, size_t... I>
Kernel kernel_of(Function function, bool locks, std::index_sequence<I...>)
{
    return [function, locks](StableIValue* stack) {
        // All are read before the function runs: what torch put onto the stack is owned here.
        std::tuple<typename Argument<Parameters>::Stored...> stored{Argument<Parameters>::take(stack[I])...};
        Holding holding(locks);
        if constexpr (std::is_void_v<Returned>) {
            std::invoke(function, Argument<Parameters>::give(std::get<I>(stored))...);
        } else {
            Result<Returned>::put(stack, std::invoke(function, Argument<Parameters>::give(std::get<I>(stored))...));
        }
    };
}

// Registry defines the ops of one library in a namespace of the dispatcher: dsbuild_cpu_adam_op.
// They stay for as long as the process.
class Registry {
public:
    Registry()
    {
        const char* space = "dsbuild_" DSBUILD_TEXT(TORCH_EXTENSION_NAME);
        STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_library_init_def(space, "", 0, &schemas_));
        // Implicit: autograd does not come between, as with pybind11. Else a result for a tensor that
        // requires a gradient would require one, too (torch/csrc/autograd/autograd_not_implemented_fallback.cpp).
        STABLE_TORCH_ERROR_CODE_CHECK(
            aoti_torch_library_init_impl(space, "CompositeImplicitAutograd", "", 0, &kernels_));
        Lock::renew_after_fork();
    }

    // add defines an op, and returns what the loader is told of it. Functions of one name are
    // overloads: each is an op of its own, called name, name__2 and so on.
    template <class Returned, class... Parameters, class Function>
    std::string add(const std::string& name, Function function, const Binding& binding)
    {
        const int overload = ++overloads_[name];
        const std::string op = overload == 1 ? name : name + "__" + std::to_string(overload);
        const std::vector<std::string> types{Argument<Parameters>::Crossing::schema()...};
        std::string schema = op + "(";
        for (size_t i = 0; i < types.size(); i++) {
            schema += (i ? ", " : "") + types[i] + " arg" + std::to_string(i);
        }
        schema += ") -> " + Result<Returned>::schema();
        STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_library_def(schemas_, schema.c_str()));
        const auto kernel = Kernels::add(kernel_of<Returned, Parameters...>(
            function, !binding.releases_gil, std::index_sequence_for<Parameters...>{}));
        STABLE_TORCH_ERROR_CODE_CHECK(torch_library_impl(kernels_, op.c_str(), kernel, TORCH_ABI_VERSION));
        return described(op, {Argument<Parameters>::Crossing::name()...}, Result<Returned>::name(), binding);
    }

    // tell adds an entry to the description.
    void tell(std::string entry) { entries_.push_back(std::move(entry)); }
    std::string description() const { return joined(entries_); }

private:
    static std::string described(const std::string& op,
                                 const std::vector<std::string>& types,
                                 const std::string& result,
                                 const Binding& binding)
    {
        std::vector<std::string> arguments;
        // The object of a method comes before the arguments that a binding names.
        const size_t unnamed = types.size() - std::min(types.size(), binding.names.size());
        for (size_t i = 0; i < types.size(); i++) {
            std::string text = "{\"type\": " + quoted(types[i]);
            if (i >= unnamed) {
                text += ", \"name\": " + quoted(binding.names[i - unnamed]);
                const auto& value = binding.defaults[i - unnamed];
                if (!value.empty()) { text += ", \"default\": " + value; }
            }
            arguments.push_back(text + "}");
        }
        return "\"op\": " + quoted(op) + ", \"doc\": " + quoted(binding.doc) + ", \"arguments\": " + joined(arguments) +
               ", \"result\": " + quoted(result);
    }

    TorchLibraryHandle schemas_ = nullptr, kernels_ = nullptr;
    std::unordered_map<std::string, int> overloads_;
    std::vector<std::string> entries_;
};

}  // namespace dsbuild
