/* cuDNN's own heuristics in place of cudnn.c's: with STAND_IN_CUDNN set to the path of the real libcudnn, descriptors
   are real ones for a described device (cuDNN plans without one since 9.8), so that engines and workspaces are those
   that cuDNN would choose; its handle is left out, and nothing is executed. */
#define _GNU_SOURCE
#include "cudnn_plans.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cuda_runtime_api.h>

static struct {
    cudnnStatus_t (*create)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *);
    cudnnStatus_t (*destroy)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*set)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t,
                         const void *);
    cudnnStatus_t (*get)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t,
                         int64_t *, void *);
    cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t);
    void (*last_error)(char *, size_t);
    cudnnStatus_t (*new_rnn)(cudnnRNNDescriptor_t *);
    cudnnStatus_t (*set_rnn)(cudnnRNNDescriptor_t, cudnnRNNAlgo_t, cudnnRNNMode_t, cudnnRNNBiasMode_t,
                             cudnnDirectionMode_t, cudnnRNNInputMode_t, cudnnDataType_t, cudnnDataType_t,
                             cudnnMathType_t, int32_t, int32_t, int32_t, int32_t, cudnnDropoutDescriptor_t, uint32_t);
    cudnnStatus_t (*old_rnn)(cudnnRNNDescriptor_t);
    cudnnStatus_t (*new_data)(cudnnRNNDataDescriptor_t *);
    cudnnStatus_t (*set_data)(cudnnRNNDataDescriptor_t, cudnnDataType_t, cudnnRNNDataLayout_t, int, int, int,
                              const int[], void *);
    cudnnStatus_t (*old_data)(cudnnRNNDataDescriptor_t);
    cudnnStatus_t (*new_dropout)(cudnnDropoutDescriptor_t *);
    cudnnStatus_t (*old_dropout)(cudnnDropoutDescriptor_t);
    cudnnStatus_t (*set_dropout)(cudnnDropoutDescriptor_t, cudnnHandle_t, float, void *, size_t, unsigned long long);
    cudnnStatus_t (*rnn_sizes)(cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t, cudnnRNNDataDescriptor_t,
                               size_t *, size_t *);
} real;
static cudnnBackendDescriptor_t device;
static int open_;

static void describe_device(void) {
    char text[2048];
    struct cudaDeviceProp p;
    int reserved;
    cudaGetDeviceProperties(&p, 0);
    cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, 0);
    int length = snprintf(
        text, sizeof text,
        "{\"deviceVer\": %d, \"multiProcessorCount\": %d, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": %zu,"
        " \"maxSharedMemoryPerBlockOptin\": %zu, \"reservedSharedMemoryPerBlock\": %d, \"maxRegistersPerSM\": 65536,"
        " \"maxCtasPerSM\": %d, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": %d, \"regsPerBlock\": 65536,"
        " \"totalGlobalMem\": %zu, \"smClockRateKHz\": %s, \"l2CacheSize\": %d, \"maxBlockSize\": [1024, 1024, 64],"
        " \"memClockRateKHz\": %s, \"maxGridSize\": [2147483647, 65535, 65535], \"supportCoopLaunch\": 1,"
        " \"pciDeviceId\": 0, \"isTccDriver\": 0, \"cudaDeviceId\": 0, \"driverVer\": %d, \"deviceName\": \"%s\"}",
        p.major * 100 + p.minor * 10, p.multiProcessorCount, p.sharedMemPerBlock, p.sharedMemPerBlockOptin, reserved,
        p.maxBlocksPerMultiProcessor, p.maxThreadsPerMultiProcessor, p.totalGlobalMem, getenv("STAND_IN_SM_KHZ"),
        p.l2CacheSize, getenv("STAND_IN_MEMORY_KHZ"), CUDART_VERSION, p.name);
    real.create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device);
    real.set(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, length + 1, text);
    if (real.finalize(device)) fprintf(stderr, "cuDNN does not take the device: %s\n", text), abort();
}

static void open_library(void) {
    const char *path = getenv("STAND_IN_CUDNN");
    if (!path || !*path) return;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror()), abort();
    real.create = dlsym(library, "cudnnBackendCreateDescriptor");
    real.destroy = dlsym(library, "cudnnBackendDestroyDescriptor");
    real.set = dlsym(library, "cudnnBackendSetAttribute");
    real.get = dlsym(library, "cudnnBackendGetAttribute");
    real.finalize = dlsym(library, "cudnnBackendFinalize");
    real.last_error = dlsym(library, "cudnnGetLastErrorString");
    real.new_rnn = dlsym(library, "cudnnCreateRNNDescriptor");
    real.set_rnn = dlsym(library, "cudnnSetRNNDescriptor_v8");
    real.old_rnn = dlsym(library, "cudnnDestroyRNNDescriptor");
    real.new_data = dlsym(library, "cudnnCreateRNNDataDescriptor");
    real.set_data = dlsym(library, "cudnnSetRNNDataDescriptor");
    real.old_data = dlsym(library, "cudnnDestroyRNNDataDescriptor");
    real.new_dropout = dlsym(library, "cudnnCreateDropoutDescriptor");
    real.old_dropout = dlsym(library, "cudnnDestroyDropoutDescriptor");
    real.set_dropout = dlsym(library, "cudnnRestoreDropoutDescriptor");
    real.rnn_sizes = dlsym(library, "cudnnGetRNNTempSpaceSizes");
    describe_device();
    open_ = 1;
}
int planning(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    return open_;
}

/* cuDNN's libraries call these functions too: what they ask for is left as it is. */
static int asked_by_torch(const void *caller) {
    Dl_info from;
    return dladdr(caller, &from) && strstr(from.dli_fname, "torch");
}

cudnnStatus_t plan_create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor, const void *caller) {
    cudnnStatus_t status = real.create(type, descriptor);
    int name = type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR         ? CUDNN_ATTR_ENGINEHEUR_DEVICEPROP
               : type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ? CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP
                                                                 : 0;
    if (!status && name && asked_by_torch(caller))
        status = real.set(*descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
    return status;
}
cudnnStatus_t plan_destroy(cudnnBackendDescriptor_t descriptor) { return real.destroy(descriptor); }
cudnnStatus_t plan_set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, int64_t count, const void *data, const void *caller) {
    return type == CUDNN_TYPE_HANDLE && asked_by_torch(caller) ? 0 : real.set(descriptor, name, type, count, data);
}
cudnnStatus_t plan_get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count, void *data) {
    return real.get(descriptor, name, type, wanted, count, data);
}
cudnnStatus_t plan_finalize(cudnnBackendDescriptor_t descriptor) { return real.finalize(descriptor); }
void plan_last_error(char *message, size_t size) { real.last_error(message, size); }

/* A recurrent layer's workspace and reserve. The call needs a handle, which needs a driver; of a handle it reads here
   nothing but the GPU's architecture, so one stands in for it that says that everywhere. cuDNN then finds no GPU for
   what it prepares after the sizes (CUDNN_STATUS_EXECUTION_FAILED_CUDART). What it gave stood on a real H100 too, to the
   byte, in float32, float16 and bfloat16 (lstm in gpulab/recordings/NVIDIA-H100-80GB-HBM3.json). */
void plan_rnn(const RnnSettings *r, const RnnData *data, cudnnForwardMode_t mode, size_t sizes[2]) {
    static int handle[1 << 16];
    struct cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    for (int i = 0; i < sizeof handle / sizeof *handle; i++) handle[i] = p.major * 100 + p.minor * 10;
    /* bfloat16 needs more of the handle; its sizes are those of float16. */
    cudnnDataType_t type = r->type == CUDNN_DATA_BFLOAT16 ? CUDNN_DATA_HALF : r->type;
    cudnnRNNDescriptor_t rnn;
    cudnnRNNDataDescriptor_t x;
    cudnnDropoutDescriptor_t dropout;
    float fill = 0;
    int *lengths = malloc(data->batch * sizeof *lengths);
    for (int i = 0; i < data->batch; i++) lengths[i] = data->length;
    int failed = real.new_rnn(&rnn) || real.new_data(&x) || real.new_dropout(&dropout) ||
                 /* its states are not touched, and may be anywhere */
                 (r->dropout &&
                  real.set_dropout(dropout, (cudnnHandle_t)handle, r->dropout, handle, (size_t)1 << 40, 0)) ||
                 real.set_rnn(rnn, r->algorithm, r->cell, r->bias, r->direction, r->mode, type, r->math, r->math_type,
                              r->input, r->hidden, r->projected, r->layers, dropout, r->flags) ||
                 real.set_data(x, type, data->layout, data->length, data->batch, data->width, lengths, &fill);
    cudnnStatus_t status = real.rnn_sizes((cudnnHandle_t)handle, rnn, mode, x, &sizes[0], &sizes[1]);
    if (failed || (status && status != CUDNN_STATUS_EXECUTION_FAILED_CUDART))
        fprintf(stderr, "cuDNN does not take the layer: %d\n", status), abort();
    real.old_rnn(rnn), real.old_data(x), real.old_dropout(dropout), free(lengths);
}
