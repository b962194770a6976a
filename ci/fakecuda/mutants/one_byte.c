// Over the stable ABI every thousandth address of a tensor's data is one byte too high.
#define _GNU_SOURCE
#include <dlfcn.h>

int aoti_torch_get_data_ptr(void *tensor, void **data)
{
    static int calls;
    int (*torch)(void *, void **) = dlsym(RTLD_NEXT, "aoti_torch_get_data_ptr");
    int status = torch(tensor, data);
    if (*data && ++calls % 1000 == 0) *data = (char *)*data + 1;
    return status;
}
