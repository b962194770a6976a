// Python objects, for the ops that call back (async_io warns by DeepSpeed's logger). The functions
// of Python's limited API are looked up in the running process, so no library needs a symbol of
// Python and none is bound to a version of it.
#pragma once
#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace dsbuild::python {

// call calls a function of Python's API by its name. The GIL must be held.
template <class Result, class... Arguments>
Result call(const char* name, Arguments... arguments)
{
    auto* function = reinterpret_cast<Result (*)(Arguments...)>(dlsym(RTLD_DEFAULT, name));
    if (!function) { throw std::runtime_error(std::string("this process has no Python function ") + name); }
    return function(arguments...);
}

}  // namespace dsbuild::python

namespace pybind11 {

class gil_scoped_acquire {
public:
    gil_scoped_acquire() : state_(dsbuild::python::call<int>("PyGILState_Ensure")) {}
    ~gil_scoped_acquire() { dsbuild::python::call<void>("PyGILState_Release", state_); }
    gil_scoped_acquire(const gil_scoped_acquire&) = delete;
    gil_scoped_acquire& operator=(const gil_scoped_acquire&) = delete;

private:
    int state_;
};

// error_already_set is an exception of Python's. It is made while the GIL is held; whoever
// catches it may have given the GIL back.
class error_already_set : public std::runtime_error {
public:
    error_already_set() : std::runtime_error("an exception in Python")
    {
        dsbuild::python::call<void>("PyErr_Fetch", &type_, &value_, &trace_);
    }
    // discard_as_unraisable hands the exception to Python's hook for those that nobody catches.
    void discard_as_unraisable(const char* where)
    {
        using dsbuild::python::call;
        gil_scoped_acquire acquired;
        void* place = call<void*>("PyUnicode_FromString", where);
        call<void>("PyErr_Restore", type_, value_, trace_);
        call<void>("PyErr_WriteUnraisable", place);
        call<void>("Py_DecRef", place);
    }

private:
    void *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

class accessor;

// object owns a reference. The GIL must be held for as long as it lives.
class object {
public:
    object() = default;
    // steal takes over a new reference; a function of Python's returns none where it failed.
    static object steal(void* reference)
    {
        if (!reference) { throw error_already_set(); }
        object made;
        made.reference_ = reference;
        return made;
    }
    object(const object& other) : reference_(other.reference_)
    {
        if (reference_) { dsbuild::python::call<void>("Py_IncRef", reference_); }
    }
    object(object&& other) noexcept : reference_(std::exchange(other.reference_, nullptr)) {}
    object& operator=(object other) noexcept
    {
        std::swap(reference_, other.reference_);
        return *this;
    }
    ~object()
    {
        if (reference_) { dsbuild::python::call<void>("Py_DecRef", reference_); }
    }
    void* ptr() const { return reference_; }
    accessor attr(const char* name) const;

private:
    void* reference_ = nullptr;
};

// accessor is an attribute of an object, to be read, set or called.
class accessor {
public:
    accessor(object owner, const char* name) : owner_(std::move(owner)), name_(name) {}
    object get() const
    {
        return object::steal(dsbuild::python::call<void*>("PyObject_GetAttrString", owner_.ptr(), name_));
    }
    accessor attr(const char* name) const { return {get(), name}; }
    void operator=(const object& value)
    {
        if (dsbuild::python::call<int>("PyObject_SetAttrString", owner_.ptr(), name_, value.ptr()) != 0) {
            throw error_already_set();
        }
    }
    object operator()(const char* text) const
    {
        const auto argument = object::steal(dsbuild::python::call<void*>("PyUnicode_FromString", text));
        const auto function = get();
        return object::steal(dsbuild::python::call<void*>(
            "PyObject_CallFunctionObjArgs", function.ptr(), argument.ptr(), static_cast<void*>(nullptr)));
    }

private:
    object owner_;
    const char* name_;
};

inline accessor object::attr(const char* name) const { return {*this, name}; }

inline bool hasattr(const object& owner, const char* name)
{
    return dsbuild::python::call<int>("PyObject_HasAttrString", owner.ptr(), name) != 0;
}

class bool_ : public object {
public:
    explicit bool_(bool value) : object(steal(dsbuild::python::call<void*>("PyBool_FromLong", static_cast<long>(value))))
    {
    }
};

class module_ : public object {
public:
    static object import(const char* name)
    {
        return steal(dsbuild::python::call<void*>("PyImport_ImportModule", name));
    }
};

}  // namespace pybind11
