/* A stand-in for the part of CUDA that PyTorch's caching allocator calls: it hands out addresses without memory behind
   them, each address once, up to STAND_IN_CAPACITY bytes less STAND_IN_CONTEXT. Loaded before libcudart, it lets
   record.py run PyTorch's own allocator on a machine without a GPU. No kernel can be launched on it. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t number(const char *name) {
    const char *value = getenv(name);
    return value ? strtoull(value, 0, 10) : 0;
}

static size_t taken;
static size_t free_bytes(void) { return number("STAND_IN_CAPACITY") - number("STAND_IN_CONTEXT") - taken; }

static CUdeviceptr reserve(size_t size, size_t alignment) {
    static CUdeviceptr next = 0x700000000000ull;
    CUdeviceptr address = (next + alignment - 1) / alignment * alignment;
    next = address + size;
    return address;
}

/* The size of every live cudaMalloc and cuMemCreate. */
static struct { unsigned long long key; size_t size; } held[1 << 16];
static int count;
static int take(unsigned long long key, size_t size) {
    taken += size;
    held[count].key = key;
    held[count++].size = size;
    return 0;
}
static int give(unsigned long long key) {
    for (int i = 0; i < count; i++)
        if (held[i].key == key) {
            taken -= held[i].size;
            held[i] = held[--count];
            return 0;
        }
    return 1;
}

cudaError_t cudaMalloc(void **pointer, size_t size) {
    if (size > free_bytes()) return cudaErrorMemoryAllocation;
    *pointer = (void *)reserve(size, 2 << 20);
    return take((unsigned long long)*pointer, size);
}
cudaError_t cudaFree(void *pointer) { return pointer ? give((unsigned long long)pointer) : 0; }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    *total = number("STAND_IN_CAPACITY");
    *free = free_bytes();
    return 0;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "stand-in");
    properties->totalGlobalMem = number("STAND_IN_CAPACITY");
    properties->major = 8;
    properties->multiProcessorCount = 1;
    properties->warpSize = 32;
    return 0;
}

cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, 0; }
cudaError_t cudaGetDevice(int *device) { return *device = 0; }
cudaError_t cudaSetDevice(int device) { return 0; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = 13020, 0; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 13020, 0; }
cudaError_t cudaGetLastError(void) { return 0; }
cudaError_t cudaPeekAtLastError(void) { return 0; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { return *can = 0; }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) { return *value = 0; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, 0; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    static size_t next = 0;
    return *stream = (cudaStream_t)(next += 256), 0;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return 0; }
cudaError_t cudaDeviceSynchronize(void) { return 0; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) { return *status = 0; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *n) {
    return *status = 0;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return 0; }

/* The driver's calls, which PyTorch asks for by name: those for expandable segments; any other does nothing. */
static CUresult none(void) { return 0; }
static CUresult mem_address_reserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr at,
                                    unsigned long long flags) {
    return *pointer = reserve(size, 20 << 20), 0;
}
static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *property,
                           unsigned long long flags) {
    static CUmemGenericAllocationHandle next;
    if (property->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
    if (size > free_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
    return take(*handle = ++next, size);
}
static CUresult mem_release(CUmemGenericAllocationHandle handle) { return give(handle); }
static CUresult device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device) { return *value = 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    *function = !strcmp(name, "cuMemAddressReserve")    ? (void *)mem_address_reserve
                : !strcmp(name, "cuMemCreate")          ? (void *)mem_create
                : !strcmp(name, "cuMemRelease")         ? (void *)mem_release
                : !strcmp(name, "cuDeviceGetAttribute") ? (void *)device_get_attribute
                                                        : (void *)none;
    if (result) *result = cudaDriverEntryPointSuccess;
    return 0;
}

/* libcuda.so.1 and libnvidia-ml.so.1 are links to this library. */
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) { return *flags = 0, *active = 1, 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return *device = 0, 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return 1; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return 1; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13020, 0; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *n, struct { unsigned pid; unsigned long long used; } *process) {
    *n = 1;
    process->pid = getpid();
    process->used = number("STAND_IN_CONTEXT") + taken;
    return 0;
}
