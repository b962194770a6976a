// AT_DISPATCH_…: a switch over a type of elements, with scalar_t in each case.
#pragma once
#include <torch/headeronly/core/Dispatch.h>

#include <dsbuild/check.h>
#include <dsbuild/scalar.h>

#define DSBUILD_CASE(type, ...) THO_DISPATCH_CASE(::at::ScalarType::type, __VA_ARGS__)
#define DSBUILD_SWITCH(type, name, ...) THO_DISPATCH_SWITCH_TMPL(THO_EMPTY, TORCH_CHECK_NOT_IMPLEMENTED, type, name, __VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(type, name, ...) \
    DSBUILD_SWITCH(type, name, DSBUILD_CASE(Double, __VA_ARGS__) DSBUILD_CASE(Float, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(type, name, ...) \
    DSBUILD_SWITCH(                                          \
        type, name, DSBUILD_CASE(Double, __VA_ARGS__) DSBUILD_CASE(Float, __VA_ARGS__) DSBUILD_CASE(Half, __VA_ARGS__))
