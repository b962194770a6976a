// The names of ATen and c10 that DeepSpeed's ops use, over torch's stable ABI alone
// (torch/csrc/stable, torch/headeronly, and the C functions below them). No symbol of torch's
// C++ interface is used, so one library serves every torch from DSBUILD_TORCH_MIN on.
#pragma once
// Not <cmath> alone: sources write sqrt(x) of a float. With <math.h> this is the function for
// float, as with torch's own headers, without it that for double, with another result.
#include <math.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <dsbuild/check.h>
#include <dsbuild/dispatch.h>
#include <dsbuild/factories.h>
#include <dsbuild/names.h>
#include <dsbuild/options.h>
#include <dsbuild/scalar.h>
#include <dsbuild/tensor.h>
