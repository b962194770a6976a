#pragma once
#include <dsbuild/cuda.h>
