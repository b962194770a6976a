// Over the stable ABI an op launches on the current device, wherever its tensors are.
int aoti_torch_create_cuda_guard(int device, void **guard) { return (void)device, *guard = 0, 0; }
int aoti_torch_delete_cuda_guard(void *guard) { return (void)guard, 0; }
