// A CUDA runtime without a GPU (libcudart.so of CUDA 12 or 13): devices, memory, streams and events are there, kernels do
// not run, and every call is written into the record (record.h).
//
// An address of device memory belongs to a range without rights, so a host that follows it dies, as
// beside a GPU. The bytes lie BYTES_AWAY further on. Addresses are given in order: two programs that
// allocate alike get the same.
//
//   FAKECUDA_RECORD      file of the record
//   FAKECUDA_KERNELS     table of kernels: mangled name, registers, size of each parameter (devicecode.py)
//   FAKECUDA_CAPABILITY  compute capability of the devices, 80 by default
//   FAKECUDA_DEVICES     how many devices, 1 by default
//   FAKECUDA_REFUSE      NUMBER:TEXT refuses launches of kernels with TEXT in their name by that error;
//                        NUMBER:malloc refuses allocations. Read at each call.
#define _GNU_SOURCE
#include "record.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_DEVICES = 8, TABLE_SIZE = 1 << 16, MAX_PENDING = 4096 };
static const uint64_t DEVICE_START = 0x600000000000, DEVICE_SIZE = 1ull << 37; // per device
static const uint64_t PINNED_START = 0x640000000000, PINNED_SIZE = 1ull << 36;
static const uint64_t BYTES_AWAY = 1ull << 44;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *record;
static int device_count = 1, capability = 80;
static int has_context[MAX_DEVICES];
static __thread int current_device;
static __thread cudaError_t last_error;

// ---- settings and record ----

__attribute__((constructor)) static void read_settings(void)
{
    const char *path = getenv("FAKECUDA_RECORD"), *text;
    if (path && !(record = fopen(path, "w"))) {
        fprintf(stderr, "fakecuda: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    if ((text = getenv("FAKECUDA_CAPABILITY"))) capability = atoi(text);
    if ((text = getenv("FAKECUDA_DEVICES"))) device_count = atoi(text);
    if (device_count < 1 || device_count > MAX_DEVICES) {
        fprintf(stderr, "fakecuda: FAKECUDA_DEVICES=%s: 1 to %d\n", text, MAX_DEVICES);
        exit(1);
    }
}

void fakecuda_line(const char *text)
{
    if (!record) return;
    pthread_mutex_lock(&lock);
    fprintf(record, "%s\n", text);
    fflush(record); // a program that dies leaves a whole record
    pthread_mutex_unlock(&lock);
}

void fakecuda_linef(const char *format, ...)
{
    char text[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fakecuda_line(text);
}

int fakecuda_missing(const char *name, int status)
{
    fakecuda_linef("call missing %s", name);
    fprintf(stderr, "fakecuda: the stand-in lacks %s\n", name);
    return status;
}

// runtime_missing serves the functions of stubs.py.
int runtime_missing(const char *name)
{
    return last_error = fakecuda_missing(name, cudaErrorNotSupported);
}

// returned is a call's status; an error stays until somebody asks for it.
static cudaError_t returned(cudaError_t status)
{
    if (status) last_error = status;
    return status;
}

// refused_by_setting returns the error that FAKECUDA_REFUSE names for name, or 0.
static cudaError_t refused_by_setting(const char *name)
{
    const char *setting = getenv("FAKECUDA_REFUSE"), *part = setting ? strchr(setting, ':') : NULL;
    return part && strstr(name, part + 1) ? atoi(setting) : cudaSuccess;
}

static void use_context(void) { has_context[current_device] = 1; }
int fakecuda_has_context(int device) { return has_context[device]; }

// ---- memory ----

struct block {
    uint64_t address, size;
    struct block *next;
};
struct space {
    uint64_t start, size, used;
    struct block *taken, *returned;
};
static struct space device_memory[MAX_DEVICES], pinned_memory;

static int is_device(const void *p)
{
    return (uint64_t)p >= DEVICE_START && (uint64_t)p < DEVICE_START + MAX_DEVICES * DEVICE_SIZE;
}
static int is_pinned(const void *p) { return (uint64_t)p >= PINNED_START && (uint64_t)p < PINNED_START + PINNED_SIZE; }
static int device_of(const void *p) { return ((uint64_t)p - DEVICE_START) / DEVICE_SIZE; }
static void *bytes_of(const void *p) { return (void *)((uint64_t)p + (is_device(p) ? BYTES_AWAY : 0)); }

static void map_range(uint64_t start, uint64_t size, int rights)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap((void *)start, size, rights, flags, -1, 0) != (void *)start) {
        fprintf(stderr, "fakecuda: addresses from %lx are taken: %s\n", start, strerror(errno));
        abort();
    }
}

// allocate takes a returned block of the same size, else the next addresses. It returns NULL if the space is full.
static void *allocate(struct space *space, uint64_t start, uint64_t limit, uint64_t size, uint64_t alignment)
{
    pthread_mutex_lock(&lock);
    if (!space->start) {
        int readable = PROT_READ | PROT_WRITE;
        space->start = start;
        space->size = limit;
        map_range(start, limit, start == PINNED_START ? readable : PROT_NONE);
        if (start != PINNED_START) map_range(start + BYTES_AWAY, limit, readable);
    }
    size = (size + alignment - 1) / alignment * alignment;
    if (size == 0) size = alignment;
    struct block **at = &space->returned;
    while (*at && (*at)->size != size) at = &(*at)->next;
    struct block *block = *at;
    if (block) {
        *at = block->next;
    } else if (size <= limit - space->used) {
        block = calloc(1, sizeof *block);
        block->address = start + space->used;
        block->size = size;
        space->used += size;
    }
    if (block) {
        block->next = space->taken;
        space->taken = block;
    }
    pthread_mutex_unlock(&lock);
    return block ? (void *)block->address : NULL;
}

static cudaError_t release(struct space *space, void *p)
{
    pthread_mutex_lock(&lock);
    struct block **at = &space->taken;
    while (*at && (*at)->address != (uint64_t)p) at = &(*at)->next;
    struct block *block = *at;
    if (block) {
        *at = block->next;
        block->next = space->returned;
        space->returned = block;
        madvise(bytes_of(p), block->size, MADV_DONTNEED); // a new owner finds zeros, in each run
    }
    pthread_mutex_unlock(&lock);
    return returned(block ? cudaSuccess : cudaErrorInvalidValue);
}

EXPORT cudaError_t cudaMalloc(void **p, size_t size)
{
    use_context();
    cudaError_t refused = refused_by_setting("malloc");
    *p = refused ? NULL : allocate(&device_memory[current_device], DEVICE_START + current_device * DEVICE_SIZE, DEVICE_SIZE, size, 2 << 20);
    fakecuda_linef("call malloc device=%d %zu -> %p", current_device, size, *p);
    return returned(refused ? refused : *p ? cudaSuccess : cudaErrorMemoryAllocation);
}
EXPORT cudaError_t cudaFree(void *p)
{
    fakecuda_linef("call free %p", p);
    if (!p) return cudaSuccess;
    return is_device(p) ? release(&device_memory[device_of(p)], p) : returned(cudaErrorInvalidValue);
}
static cudaError_t allocate_on_host(const char *name, void **p, size_t size, unsigned flags)
{
    *p = allocate(&pinned_memory, PINNED_START, PINNED_SIZE, size, 4096);
    fakecuda_linef("call %s %zu flags=%u -> %p", name, size, flags, *p);
    return returned(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}
EXPORT cudaError_t cudaMallocManaged(void **p, size_t size, unsigned flags) { return allocate_on_host("mallocManaged", p, size, flags); }
EXPORT cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags) { return allocate_on_host("hostAlloc", p, size, flags); }
EXPORT cudaError_t cudaMallocHost(void **p, size_t size) { return allocate_on_host("mallocHost", p, size, 0); }
EXPORT cudaError_t cudaFreeHost(void *p)
{
    fakecuda_linef("call freeHost %p", p);
    return release(&pinned_memory, p);
}
EXPORT cudaError_t cudaHostRegister(void *p, size_t size, unsigned flags)
{
    (void)p; // an address of the host is another in each run
    fakecuda_linef("call hostRegister %zu flags=%u", size, flags);
    return cudaSuccess;
}
EXPORT cudaError_t cudaHostUnregister(void *p)
{
    (void)p;
    fakecuda_line("call hostUnregister");
    return cudaSuccess;
}
EXPORT cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    (void)flags;
    *device = host;
    return cudaSuccess;
}
EXPORT cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *available = DEVICE_SIZE / 2;
    *total = DEVICE_SIZE;
    return cudaSuccess;
}
EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p)
{
    memset(attributes, 0, sizeof *attributes);
    attributes->device = cudaInvalidDeviceId;
    if (is_device(p)) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = device_of(p);
        attributes->devicePointer = (void *)p;
    } else if (is_pinned(p)) {
        attributes->type = cudaMemoryTypeHost;
        attributes->device = 0;
        attributes->devicePointer = attributes->hostPointer = (void *)p;
    } else {
        attributes->type = cudaMemoryTypeUnregistered;
    }
    return cudaSuccess;
}

// digest is FNV-1a of copied bytes: the record of a copy tells what was copied.
static uint64_t digest(const void *bytes, size_t size)
{
    uint64_t sum = 0xcbf29ce484222325;
    for (size_t i = 0; i < size; i++) sum = (sum ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3;
    return sum;
}
static void name_place(char text[32], const void *p)
{
    if (is_device(p) || is_pinned(p)) snprintf(text, 32, "%p", p);
    else strcpy(text, "host");
}
static cudaError_t copy(const char *name, void *to, const void *from, size_t size, int kind, cudaStream_t stream)
{
    char to_name[32], from_name[32];
    name_place(to_name, to);
    name_place(from_name, from);
    memmove(bytes_of(to), bytes_of(from), size);
    fakecuda_linef("call %s %s <- %s %zu kind=%d stream=%s bytes=%016lx", name, to_name, from_name, size, kind, fakecuda_stream(stream), digest(bytes_of(to), size));
    return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) { return copy("memcpy", to, from, size, kind, NULL); }
EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy("memcpyAsync", to, from, size, kind, stream);
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, cudaStream_t stream)
{
    (void)to_device, (void)from_device; // the addresses tell them
    return copy("memcpyPeerAsync", to, from, size, cudaMemcpyDefault, stream);
}
EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    memset(bytes_of(to), value, size);
    fakecuda_linef("call memset %p value=%d %zu stream=%s", to, value, size, fakecuda_stream(stream));
    return cudaSuccess;
}
EXPORT cudaError_t cudaMemset(void *to, int value, size_t size) { return cudaMemsetAsync(to, value, size, NULL); }

// ---- devices ----

static cudaError_t check_device(int device) { return returned(device >= 0 && device < device_count ? cudaSuccess : cudaErrorInvalidDevice); }

EXPORT cudaError_t cudaGetDeviceCount(int *count) { return *count = device_count, cudaSuccess; }
EXPORT cudaError_t cudaGetDevice(int *device) { return *device = current_device, cudaSuccess; }
EXPORT cudaError_t cudaSetDevice(int device)
{
    fakecuda_linef("ask setDevice %d", device);
    if (check_device(device)) return cudaErrorInvalidDevice;
    current_device = device;
    use_context();
    return cudaSuccess;
}
// Limits of A100 and H100, from the CUDA C++ programming guide, "Technical specifications per compute capability".
EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    if (check_device(device)) return cudaErrorInvalidDevice;
    int hopper = capability >= 90;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "GPU of fakecuda, %d.%d", capability / 10, capability % 10);
    p->uuid.bytes[0] = device + 1;
    p->pciBusID = device + 1;
    p->major = capability / 10;
    p->minor = capability % 10;
    p->totalGlobalMem = DEVICE_SIZE;
    p->totalConstMem = 65536;
    p->multiProcessorCount = hopper ? 132 : 108;
    p->l2CacheSize = 40 << 20;
    p->memoryBusWidth = 5120;
    p->memPitch = INT32_MAX;
    p->textureAlignment = 512;
    p->texturePitchAlignment = 32;
    p->warpSize = 32;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = (hopper ? 227 : 163) << 10;
    p->sharedMemPerMultiprocessor = (hopper ? 228 : 164) << 10;
    p->reservedSharedMemPerBlock = 1 << 10;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = INT32_MAX;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->asyncEngineCount = 3;
    p->unifiedAddressing = p->managedMemory = p->concurrentKernels = p->canMapHostMemory = 1;
    p->streamPrioritiesSupported = p->cooperativeLaunch = p->hostRegisterSupported = 1;
    p->memoryPoolsSupported = p->ECCEnabled = 1;
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    struct cudaDeviceProp p;
    cudaError_t status = cudaGetDeviceProperties(&p, device);
    if (status) return status;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
    default:
        *value = 0;
        fakecuda_linef("ask attribute %d", (int)attribute);
    }
    return cudaSuccess;
}
EXPORT cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
EXPORT cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    fakecuda_linef("call deviceSynchronize device=%d", current_device);
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceReset(void) { return cudaSuccess; }
EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { return *can = device != peer, cudaSuccess; }
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return (void)peer, (void)flags, cudaSuccess; }
EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    snprintf(text, size, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
EXPORT cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
EXPORT cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
EXPORT cudaError_t cudaPeekAtLastError(void) { return last_error; }
EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
EXPORT const char *cudaGetErrorName(cudaError_t error) { return error ? "cudaErrorOfFakecuda" : "cudaSuccess"; }
EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    static __thread char text[40];
    snprintf(text, sizeof text, error ? "error %d of fakecuda" : "no error", (int)error);
    return text;
}

// ---- streams and events ----

struct CUstream_st {
    int number, device, priority;
    unsigned flags;
};
struct CUevent_st {
    int number;
};
static int stream_count, event_count;

// is_default says whether a stream is one of CUDA's own, which have small numbers for handles.
static int is_default(cudaStream_t stream) { return (uint64_t)stream < 16; }

const char *fakecuda_stream(cudaStream_t stream)
{
    static __thread char texts[4][32]; // for a line that names several
    static __thread unsigned next;
    char *text = texts[next++ % 4];
    if (is_default(stream)) snprintf(text, 32, "default%lu@%d", (uint64_t)stream, current_device);
    else snprintf(text, 32, "%d@%d", stream->number, stream->device);
    return text;
}
EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    use_context();
    *stream = calloc(1, sizeof **stream);
    **stream = (struct CUstream_st){__sync_add_and_fetch(&stream_count, 1), current_device, priority, flags};
    fakecuda_linef("call streamCreate %s flags=%u priority=%d", fakecuda_stream(*stream), flags, priority);
    return cudaSuccess;
}
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    fakecuda_linef("call streamDestroy %s", fakecuda_stream(stream)); // its memory stays: a late user names it truly
    return cudaSuccess;
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) { return fakecuda_linef("ask streamQuery %s", fakecuda_stream(stream)), cudaSuccess; }
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return fakecuda_linef("call streamSynchronize %s", fakecuda_stream(stream)), cudaSuccess; }
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { return *priority = is_default(stream) ? 0 : stream->priority, cudaSuccess; }
EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) { return *flags = is_default(stream) ? 0 : stream->flags, cudaSuccess; }
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    fakecuda_linef("call streamWaitEvent %s event=%d flags=%u", fakecuda_stream(stream), event->number, flags);
    return cudaSuccess;
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    (void)stream;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                            const cudaGraphNode_t **nodes,
#if CUDART_VERSION >= 13000
                                            __attribute__((unused)) const cudaGraphEdgeData **edges,
#endif
                                            size_t *count)
{
    (void)stream, (void)graph, (void)nodes;
    if (status) *status = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    if (count) *count = 0;
    return cudaSuccess;
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return (void)mode, cudaSuccess; }
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    fakecuda_linef("call launchHostFunc %s", fakecuda_stream(stream));
    function(data);
    return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    use_context();
    *event = calloc(1, sizeof **event);
    (*event)->number = __sync_add_and_fetch(&event_count, 1);
    fakecuda_linef("call eventCreate %d flags=%u", (*event)->number, flags);
    return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    fakecuda_linef("call eventDestroy %d", event->number);
    free(event);
    return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    fakecuda_linef("call eventRecord %d %s flags=%u", event->number, fakecuda_stream(stream), flags);
    return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) { return fakecuda_linef("ask eventQuery %d", event->number), cudaSuccess; }
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) { return fakecuda_linef("call eventSynchronize %d", event->number), cudaSuccess; }
EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    (void)from, (void)to;
    *milliseconds = 1;
    return cudaSuccess;
}

// ---- kernels ----

// A kernel is registered by the address of its function on the host. The sizes of its parameters come
// from FAKECUDA_KERNELS, where the device code declares them.
struct kernel {
    const void *host;
    const char *name;
    int registers, parameters; // parameters is -1 if the table lacks the kernel
    int *sizes;
    struct kernel *next;
};
struct row {
    char *name;
    int registers, parameters, *sizes;
};
static struct kernel *kernels[TABLE_SIZE];
static struct row *rows;
static int row_count;

static int compare_rows(const void *a, const void *b) { return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name); }

static void read_table(void)
{
    const char *path = getenv("FAKECUDA_KERNELS");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (path && !file) {
        fprintf(stderr, "fakecuda: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    char *line = NULL;
    size_t room = 0;
    while (file && getline(&line, &room, file) > 0) {
        rows = realloc(rows, (row_count + 1) * sizeof *rows);
        struct row *row = &rows[row_count++];
        char *position = NULL, *word = strtok_r(line, " \n", &position);
        *row = (struct row){.name = strdup(word ? word : "")};
        if ((word = strtok_r(NULL, " \n", &position))) row->registers = atoi(word);
        while ((word = strtok_r(NULL, " \n", &position))) {
            row->sizes = realloc(row->sizes, (row->parameters + 1) * sizeof *row->sizes);
            row->sizes[row->parameters++] = atoi(word);
        }
    }
    free(line);
    if (file) fclose(file);
    if (rows) qsort(rows, row_count, sizeof *rows, compare_rows);
}
static unsigned slot_of(const void *host) { return ((uint64_t)host >> 4) * 2654435761u >> 16 & (TABLE_SIZE - 1); }
static struct kernel *registered(const void *host)
{
    struct kernel *kernel = kernels[slot_of(host)];
    while (kernel && kernel->host != host) kernel = kernel->next;
    return kernel;
}
// kernel_of finds a kernel by its function on the host, or by the handle that __cudaGetKernel gave.
static struct kernel *kernel_of(const void *p)
{
    struct kernel *kernel = registered(p);
    return kernel ? kernel : (struct kernel *)p;
}
EXPORT void **__cudaRegisterFatBinary(void *binary) { return (void)binary, calloc(1, sizeof(void *)); }
EXPORT void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
EXPORT void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
EXPORT char __cudaInitModule(void **handle) { return (void)handle, 1; }
EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *thread,
                                   uint3 *block, dim3 *block_size, dim3 *grid_size, int *warp)
{
    (void)handle, (void)device, (void)limit, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warp;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_table);
    struct row key = {.name = (char *)name}, *row = rows ? bsearch(&key, rows, row_count, sizeof *rows, compare_rows) : NULL;
    struct kernel *kernel = calloc(1, sizeof *kernel);
    *kernel = (struct kernel){.host = host, .name = name, .parameters = -1};
    if (row) {
        kernel->registers = row->registers;
        kernel->parameters = row->parameters;
        kernel->sizes = row->sizes;
    }
    pthread_mutex_lock(&lock);
    kernel->next = kernels[slot_of(host)];
    kernels[slot_of(host)] = kernel;
    pthread_mutex_unlock(&lock);
}
EXPORT void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}
EXPORT void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int external, size_t size, int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    *kernel = (cudaKernel_t)registered(host);
    return returned(*kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

// write_arguments makes hexadecimal digits of the arguments, a word for each; "?" if their sizes are not known.
static char *write_arguments(const struct kernel *kernel, void **arguments)
{
    if (kernel->parameters < 0) return strdup(" ?");
    size_t room = 1;
    for (int i = 0; i < kernel->parameters; i++) room += 1 + 2 * kernel->sizes[i];
    char *text = calloc(1, room), *end = text;
    for (int i = 0; i < kernel->parameters; i++) {
        *end++ = ' ';
        for (int byte = 0; byte < kernel->sizes[i]; byte++) end += sprintf(end, "%02x", ((unsigned char *)arguments[i])[byte]);
    }
    return text;
}
// refused_by_gpu returns the error of a launch that no GPU takes.
static cudaError_t refused_by_gpu(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return cudaErrorInvalidConfiguration;
    if (grid.y > 65535 || grid.z > 65535 || block.z > 64 || block.x * block.y * block.z > 1024) return cudaErrorInvalidConfiguration;
    if (shared > 227 << 10) return cudaErrorInvalidConfiguration;
    return !is_default(stream) && stream->device != current_device ? cudaErrorInvalidResourceHandle : cudaSuccess;
}
static cudaError_t launch(const char *how, const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    use_context();
    struct kernel *kernel = kernel_of(function);
    char *values = write_arguments(kernel, arguments), *line;
    if (asprintf(&line, "call %s %s grid=%u,%u,%u block=%u,%u,%u shared=%zu stream=%s device=%d arguments%s", how, kernel->name, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                 shared, fakecuda_stream(stream), current_device, values) < 0) abort();
    fakecuda_line(line);
    free(line);
    free(values);
    cudaError_t refused = refused_by_setting(kernel->name);
    return returned(refused ? refused : refused_by_gpu(grid, block, shared, stream));
}
EXPORT cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    return launch("launch", function, grid, block, arguments, shared, stream);
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    return launch("launch", kernel, grid, block, arguments, shared, stream); // nvcc 13 makes this call for <<<…>>>
}
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    return launch("launchCooperative", function, grid, block, arguments, shared, stream);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
    return launch("launchEx", function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream);
}

// <<<…>>> pushes its configuration, computes the arguments and pops it. An argument that throws leaves
// its configuration behind, as in the real runtime.
struct pending {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
static __thread struct pending pending[MAX_PENDING];
static __thread int pending_count;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    if (pending_count == MAX_PENDING) abort();
    pending[pending_count++] = (struct pending){grid, block, shared, stream};
    return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    struct pending top = pending[--pending_count];
    *grid = top.grid;
    *block = top.block;
    *shared = top.shared;
    *(cudaStream_t *)stream = top.stream;
    return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    fakecuda_linef("call funcSetAttribute %s %d %d", kernel_of(function)->name, (int)attribute, value);
    return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetCacheConfig(const void *function, enum cudaFuncCache config)
{
    fakecuda_linef("call funcSetCacheConfig %s %d", kernel_of(function)->name, (int)config);
    return cudaSuccess;
}
// registers_of is 32 for a kernel that the table lacks.
static int registers_of(const void *function)
{
    int registers = kernel_of(function)->registers;
    return registers ? registers : 32;
}
EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = registers_of(function);
    attributes->ptxVersion = attributes->binaryVersion = capability;
    attributes->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
}
// The smallest of what threads, registers (256 for each warp at a time), shared memory and blocks allow.
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int block, size_t shared, unsigned flags)
{
    int warps = (block + 31) / 32, for_warp = (registers_of(function) * 32 + 255) / 256 * 256;
    int most = 2048 / (warps * 32), by_registers = 65536 / (for_warp * warps), by_shared = shared ? (164 << 10) / (int)(shared + 1024) : most;
    if (by_registers < most) most = by_registers;
    if (by_shared < most) most = by_shared;
    *blocks = most < 32 ? most : 32;
    fakecuda_linef("ask occupancy %s %d %zu flags=%u -> %d", kernel_of(function)->name, block, shared, flags, *blocks);
    return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block, shared, 0);
}

// ---- functions of the driver that torch asks the runtime for ----

static int driver_success(void) { return 0; }
static int driver_context_state(int device, unsigned *flags, int *active) { return *flags = 0, *active = has_context[device], 0; }
static int driver_current_context(void **context) { return *context = (void *)(uint64_t)(current_device + 1), 0; }
static int driver_retain_context(void **context, int device) { return *context = (void *)(uint64_t)(device + 1), 0; }
static int driver_device(int *device, int ordinal) { return *device = ordinal, 0; }
static int driver_attribute(int *value, int attribute, int device) { return cudaDeviceGetAttribute(value, attribute, device); }
static int driver_error_text(int error, const char **text) { return *text = cudaGetErrorString(error), 0; }

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result)
{
    static const struct { const char *name; void *function; } known[] = {
        {"cuDevicePrimaryCtxGetState", driver_context_state}, {"cuCtxGetCurrent", driver_current_context},
        {"cuDevicePrimaryCtxRetain", driver_retain_context},  {"cuDeviceGet", driver_device},
        {"cuDeviceGetAttribute", driver_attribute},           {"cuGetErrorString", driver_error_text},
    };
    (void)version, (void)flags;
    fakecuda_linef("ask driver %s", name);
    *function = driver_success;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) *function = known[i].function;
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
#if CUDART_VERSION < 13000
EXPORT cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result)
{
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}
#endif
