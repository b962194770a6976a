#pragma once
#include <dsbuild/torch.h>
#include <dsbuild/pybind.h>
