/* A stand-in for libcudart, libcuda and libnvidia-ml, enough for PyTorch's CUDA operators: devices, memory, streams and
   events as the environment says (STAND_IN_*, see stand_in.py). Kernels do nothing, device memory is an address without
   memory behind it, and every copy to the host is zeros, or what stand_in_answer was told before. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t number(const char *name) {
    const char *value = getenv(name);
    return value ? strtoull(value, 0, 10) : 0;
}

/* Devices: all alike, the chosen one per thread. */

enum { DEVICES = 8 };
static __thread int current_device;
static __thread cudaError_t last_error;
static int devices(void) { return number("STAND_IN_DEVICES") ? number("STAND_IN_DEVICES") : 1; }
static int capability(void) { return number("STAND_IN_CAPABILITY"); }
static cudaError_t answer(cudaError_t error) { return error ? last_error = error : 0; }

/* What differs between the architectures and steers PyTorch's choices: CUDA programming guide, compute capabilities. */
static int ada_or_like(void) { return capability() == 86 || capability() == 89; }
static int threads_per_sm(void) { return capability() == 75 ? 1024 : ada_or_like() ? 1536 : 2048; }
static int blocks_per_sm(void) { return capability() == 75 || capability() == 86 ? 16 : capability() == 89 ? 24 : 32; }
static int shared_per_sm(void) {
    switch (capability()) {
    case 75: return 64 << 10;
    case 80: return 164 << 10;
    case 86: case 89: return 100 << 10;
    default: return 228 << 10;
    }
}
static int shared_per_block(void) { return capability() == 75 ? 64 << 10 : shared_per_sm() - 1024; }
static int l2_bytes(void) { return capability() == 75 ? 4 << 20 : capability() == 80 ? 40 << 20 : 50 << 20; }

cudaError_t cudaGetDeviceCount(int *n) { return *n = devices(), 0; }
cudaError_t cudaGetDevice(int *device) { return *device = current_device, 0; }
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= devices()) return answer(cudaErrorInvalidDevice);
    return current_device = device, 0;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    if (device < 0 || device >= devices()) return answer(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", getenv("STAND_IN_NAME") ? getenv("STAND_IN_NAME") : "stand-in");
    memset(&p->uuid, device + 1, sizeof p->uuid);
    p->totalGlobalMem = number("STAND_IN_CAPACITY");
    p->major = capability() / 10;
    p->minor = capability() % 10;
    p->multiProcessorCount = number("STAND_IN_SMS");
    p->maxThreadsPerMultiProcessor = threads_per_sm();
    p->maxBlocksPerMultiProcessor = blocks_per_sm();
    p->sharedMemPerMultiprocessor = shared_per_sm();
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = shared_per_block();
    p->l2CacheSize = l2_bytes();
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->textureAlignment = p->texturePitchAlignment = 512;
    p->totalConstMem = 65536;
    p->pciBusID = device + 1;
    p->asyncEngineCount = 3;
    p->unifiedAddressing = p->managedMemory = p->concurrentKernels = p->cooperativeLaunch = 1;
    p->streamPrioritiesSupported = p->canMapHostMemory = p->memoryPoolsSupported = 1;
    return 0;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    if (device < 0 || device >= devices()) return answer(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY:
        *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = shared_per_block(); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = shared_per_sm(); break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = capability() == 75 ? 0 : 1024; break;
    case cudaDevAttrTotalConstantMemory: *value = 65536; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrTextureAlignment: case cudaDevAttrTexturePitchAlignment: *value = 512; break;
    case cudaDevAttrMultiProcessorCount: *value = number("STAND_IN_SMS"); break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = threads_per_sm(); break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = blocks_per_sm(); break;
    case cudaDevAttrComputeCapabilityMajor: *value = capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability() % 10; break;
    case cudaDevAttrL2CacheSize: *value = l2_bytes(); break;
    case cudaDevAttrAsyncEngineCount: *value = 3; break;
    case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing: case cudaDevAttrManagedMemory:
    case cudaDevAttrCanMapHostMemory: case cudaDevAttrCooperativeLaunch: case cudaDevAttrStreamPrioritiesSupported:
        *value = 1; break;
    default: *value = 0;
    }
    return 0;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    return snprintf(id, length, "00000000:%02x:00.0", device + 1), 0;
}
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, 0; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, 0; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { return *can = 0; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, 0; }
cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    return last_error = 0, error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }

/* Memory: addresses, each handed out once; pinned host memory is real. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t taken[DEVICES];
static struct { unsigned long long key; size_t size; int device; } held[1 << 16]; /* device -1: pinned host memory */
static int count;

static size_t free_bytes(int device) {
    return number("STAND_IN_CAPACITY") - number("STAND_IN_CONTEXT") - taken[device];
}
static CUdeviceptr reserve(size_t size, size_t alignment) {
    static CUdeviceptr next = 0x100000000000ull;
    CUdeviceptr address = (next + alignment - 1) / alignment * alignment;
    next = address + size;
    return address;
}
static int take(unsigned long long key, size_t size, int device) {
    if (device >= 0) taken[device] += size;
    held[count].key = key;
    held[count].size = size;
    held[count++].device = device;
    return 0;
}
static int give(unsigned long long key) {
    pthread_mutex_lock(&lock);
    int found = 1;
    for (int i = 0; i < count && found; i++)
        if (held[i].key == key) {
            if (held[i].device >= 0) taken[held[i].device] -= held[i].size;
            held[i] = held[--count];
            found = 0;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

/* The device whose memory `pointer` is, -1 for pinned host memory, -2 for any other. */
static int owner(const void *pointer) {
    unsigned long long at = (unsigned long long)pointer;
    int device = -2;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count && device == -2; i++)
        if (held[i].key <= at && at < held[i].key + held[i].size) device = held[i].device;
    pthread_mutex_unlock(&lock);
    return device;
}

cudaError_t cudaMalloc(void **pointer, size_t size) {
    pthread_mutex_lock(&lock);
    int fits = size <= free_bytes(current_device);
    if (fits) take((unsigned long long)(*pointer = (void *)reserve(size, 2 << 20)), size, current_device);
    pthread_mutex_unlock(&lock);
    return answer(fits ? 0 : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *pointer) { return pointer ? give((unsigned long long)pointer) : 0; }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    *total = number("STAND_IN_CAPACITY");
    *free = free_bytes(current_device);
    return 0;
}
cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    if (posix_memalign(pointer, 4096, size ? size : 1)) return answer(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&lock);
    take((unsigned long long)*pointer, size, -1);
    pthread_mutex_unlock(&lock);
    return 0;
}
cudaError_t cudaMallocHost(void **pointer, size_t size) { return cudaHostAlloc(pointer, size, 0); }
cudaError_t cudaFreeHost(void *pointer) {
    give((unsigned long long)pointer);
    return free(pointer), 0;
}
cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags) {
    pthread_mutex_lock(&lock);
    take((unsigned long long)pointer, size, -1);
    pthread_mutex_unlock(&lock);
    return 0;
}
cudaError_t cudaHostUnregister(void *pointer) { return give((unsigned long long)pointer); }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    int device = owner(pointer);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = device >= 0    ? cudaMemoryTypeDevice
                       : device == -1 ? cudaMemoryTypeHost
                                      : cudaMemoryTypeUnregistered;
    attributes->device = device >= 0 ? device : 0;
    attributes->devicePointer = device >= -1 ? (void *)pointer : 0;
    attributes->hostPointer = device == -1 ? (void *)pointer : 0;
    return 0;
}
static struct { size_t size; char bytes[1 << 10]; } answers[16];
static int answered, asked;
/* The next copy of this size to the host, after those that were asked for before, brings these bytes; 0 forgets all. */
int stand_in_answer(const void *bytes, size_t size) {
    if (!size) return asked = answered, 0;
    if (size > sizeof answers->bytes || answered - asked >= 16) return 1;
    answers[answered % 16].size = size;
    memcpy(answers[answered++ % 16].bytes, bytes, size);
    return 0;
}
static cudaError_t copied(void *to, size_t size) {
    if (owner(to) >= 0) return 0;
    if (asked < answered && answers[asked % 16].size == size)
        memcpy(to, answers[asked++ % 16].bytes, size);
    else
        memset(to, 0, size);
    return 0;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) { return copied(to, size); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return copied(to, size);
}
cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) { return *pointer = (void *)symbol, 0; }

/* Streams and events: everything has happened already. */

static cudaError_t fresh(void *handle) {
    static size_t next = 0;
    return *(size_t *)handle = __sync_add_and_fetch(&next, 256), 0;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return fresh(stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return fresh(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) { return fresh(stream); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { return *priority = 0; }
cudaError_t cudaEventCreate(cudaEvent_t *event) { return fresh(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return fresh(event); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) { return *ms = 0, 0; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) { return *status = 0; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *n) {
    return *status = 0;
}

/* Kernels: registered, measured by nobody, launched into nothing. Their registers are unknown, so occupancy counts
   threads, blocks and shared memory only. */

static __thread struct { dim3 grid, block; size_t shared; void *stream; } launch;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    launch.grid = grid, launch.block = block, launch.shared = shared, launch.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = launch.grid, *block = launch.block, *shared = launch.shared, *(void **)stream = launch.stream;
    return 0;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) { return *kernel = (cudaKernel_t)function, 0; }
void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    return &handle;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = capability();
    attributes->maxDynamicSharedSizeBytes = 48 << 10;
    return 0;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int size, size_t shared) {
    *blocks = threads_per_sm() / (size ? size : 1);
    if (*blocks > blocks_per_sm()) *blocks = blocks_per_sm();
    if (shared && *blocks > shared_per_sm() / shared) *blocks = shared_per_sm() / shared;
    return 0;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size,
                                                                   size_t shared, unsigned flags) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, size, shared);
}

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
    if (size > free_bytes(property->location.id)) return CUDA_ERROR_OUT_OF_MEMORY;
    return take(*handle = ++next, size, property->location.id);
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

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    return *flags = 0, *active = 1, 0;
}
CUresult cuDriverGetVersion(int *version) { return *version = CUDART_VERSION, 0; }
CUresult cuDeviceGetCount(int *n) { return *n = devices(), 0; }
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = (CUcontext)1, 0; }
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *(int *)data = owner((void *)pointer);
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return *device = 0, 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return 1; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return 1; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = CUDART_VERSION, 0; }
struct process { unsigned pid; unsigned long long used; };
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *n, struct process *process) {
    *n = 1;
    process->pid = getpid();
    process->used = number("STAND_IN_CONTEXT") + taken[current_device];
    return 0;
}
