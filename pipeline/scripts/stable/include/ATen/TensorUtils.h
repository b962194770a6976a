#pragma once
#include <dsbuild/torch.h>
