// The driver (libcuda.so.1). torch's libcaffe2_nvrtc.so links functions of it by name; the few that torch
// calls are here.
#include "record.h"

int cuda_missing(const char *name) { return fakecuda_missing(name, 100); /* CUDA_ERROR_NO_DEVICE */ }

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return *flags = 0, *active = fakecuda_has_context(device), 0; }
EXPORT int cuCtxGetCurrent(void **context) { return *context = (void *)1, 0; }
EXPORT int cuGetErrorString(int error, const char **text) { return (void)error, *text = "error of fakecuda's driver", 0; }
