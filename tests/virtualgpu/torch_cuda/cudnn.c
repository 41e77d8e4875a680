/* A stand-in for cuDNN: descriptors keep what they were given, every heuristic names one engine, no plan wants a
   workspace or a reserve, and executing does nothing. */
#include "cudnn_plans.h"
#include <stdlib.h>
#include <string.h>

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return 13020; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return "stand-in"; }
void cudnnGetLastErrorString(char *message, size_t size) {
    if (size) *message = 0;
    if (planning()) plan_last_error(message, size);
}
cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
    return *value = type == 0 ? CUDNN_MAJOR : type == 1 ? CUDNN_MINOR : CUDNN_PATCHLEVEL, 0;
}

/* The graph interface: a descriptor is a list of attributes. An unset list of descriptors to fill in has one entry
   where it stands for an engine, none elsewhere; an unset number is 0. */

typedef struct { int name; cudnnBackendAttributeType_t type; int64_t count; size_t bytes; void *data; } Attribute;
typedef struct { cudnnBackendDescriptorType_t type; int count; Attribute attributes[64]; } Descriptor;

static size_t size_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN: case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_INT64: case CUDNN_TYPE_DOUBLE: case CUDNN_TYPE_HANDLE: case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_FRACTION: return 16;
    default: return 4;
    }
}
static Attribute *find(Descriptor *descriptor, int name) {
    for (int i = 0; i < descriptor->count; i++)
        if (descriptor->attributes[i].name == name) return &descriptor->attributes[i];
    return 0;
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor) {
    if (planning()) return plan_create(type, descriptor, __builtin_return_address(0));
    Descriptor *made = calloc(1, sizeof *made);
    made->type = type;
    return *descriptor = made, 0;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    if (planning()) return plan_destroy(descriptor);
    Descriptor *old = descriptor;
    for (int i = 0; i < old->count; i++) free(old->attributes[i].data);
    return free(old), 0;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *data) {
    if (planning()) return plan_set(descriptor, name, type, count, data, __builtin_return_address(0));
    Attribute *attribute = find(descriptor, name);
    if (!attribute) attribute = &((Descriptor *)descriptor)->attributes[((Descriptor *)descriptor)->count++];
    free(attribute->data);
    *attribute = (Attribute){name, type, count, count * size_of(type), malloc(count * size_of(type) + 1)};
    memcpy(attribute->data, data, attribute->bytes);
    return 0;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count, void *data) {
    if (planning()) return plan_get(descriptor, name, type, wanted, count, data);
    Attribute *attribute = find(descriptor, name);
    int64_t n = attribute ? attribute->count
                          : name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE ||
                                type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_INT32;
    if (count) *count = n;
    if (!data || wanted < 1) return 0;
    if (!attribute && n && type != CUDNN_TYPE_BACKEND_DESCRIPTOR) memset(data, 0, size_of(type));
    if (!attribute) return 0;
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) memcpy(data, attribute->data, (wanted < n ? wanted : n) * size_of(type));
    return 0;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    return planning() ? plan_finalize(descriptor) : CUDNN_STATUS_SUCCESS;
}

/* The older interface: sizes. */

#define ZERO(name, ...) cudnnStatus_t name(__VA_ARGS__, size_t *size) { return *size = 0, CUDNN_STATUS_SUCCESS; }
ZERO(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, cudnnHandle_t h, cudnnBatchNormMode_t m,
     cudnnBatchNormOps_t o, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t z, cudnnTensorDescriptor_t y,
     cudnnTensorDescriptor_t b, cudnnActivationDescriptor_t a)
ZERO(cudnnGetBatchNormalizationBackwardExWorkspaceSize, cudnnHandle_t h, cudnnBatchNormMode_t m, cudnnBatchNormOps_t o,
     cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y, cudnnTensorDescriptor_t dy, cudnnTensorDescriptor_t dz,
     cudnnTensorDescriptor_t dx, cudnnTensorDescriptor_t db, cudnnActivationDescriptor_t a)
ZERO(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, cudnnHandle_t h, cudnnBatchNormMode_t m,
     cudnnBatchNormOps_t o, cudnnActivationDescriptor_t a, cudnnTensorDescriptor_t x)
ZERO(cudnnDropoutGetStatesSize, cudnnHandle_t h)
ZERO(cudnnGetCTCLossWorkspaceSize_v8, cudnnHandle_t h, cudnnCTCLossAlgo_t a, cudnnCTCLossDescriptor_t c,
     cudnnTensorDescriptor_t p, cudnnTensorDescriptor_t g)
/* Recurrent layers. Their weights: for each layer and direction the input's matrices, then the hidden state's; after
   all of them the biases in the same order. */

typedef struct { int gates, directions, biases, input, hidden, projected, layers, bytes; RnnSettings given; } Rnn;
typedef struct { int dimensions[3], strides[3]; cudnnDataType_t type; } Tensor;

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *made) { return *made = calloc(1, sizeof(Rnn)), 0; }
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t old) { return free(old), 0; }
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *made) {
    return *made = calloc(1, sizeof(Tensor)), 0;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t old) { return free(old), 0; }
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t algo, cudnnRNNMode_t cell,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                                       cudnnRNNInputMode_t mode,
                                       cudnnDataType_t type, cudnnDataType_t math, cudnnMathType_t math_type,
                                       int32_t input, int32_t hidden, int32_t projected, int32_t layers,
                                       cudnnDropoutDescriptor_t dropout, uint32_t flags) {
    *(Rnn *)rnn = (Rnn){cell == CUDNN_LSTM ? 4 : cell == CUDNN_GRU ? 3 : 1, direction == CUDNN_BIDIRECTIONAL ? 2 : 1,
                        bias != CUDNN_RNN_NO_BIAS, input, hidden, projected, layers,
                        type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2,
                        {algo, cell, bias, direction, mode, type, math, math_type, input, hidden, projected, layers,
                         flags, *(float *)dropout}};
    return 0;
}
/* A dropout is its rate. */
cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *made) {
    return *made = calloc(1, sizeof(float)), 0;
}
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t old) { return free(old), 0; }
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t handle, float rate,
                                        void *states, size_t size, unsigned long long seed) {
    return *(float *)dropout = rate, 0;
}
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t handle, float rate,
                                            void *states, size_t size, unsigned long long seed) {
    return *(float *)dropout = rate, 0;
}
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *made) {
    return *made = calloc(1, sizeof(RnnData)), 0;
}
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t old) { return free(old), 0; }
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int length, int batch, int width,
                                        const int lengths[], void *fill) {
    *(RnnData *)data = (RnnData){type, layout, length, batch, width};
    return 0;
}
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t data, size_t *workspace, size_t *reserve) {
    size_t both[2] = {0, 0};
    if (planning()) plan_rnn(&((Rnn *)rnn)->given, (RnnData *)data, mode, both);
    if (workspace) *workspace = both[0];
    if (reserve) *reserve = both[1];
    return 0;
}
static size_t columns(const Rnn *rnn, int pseudo_layer, int from_input) {
    if (!from_input) return rnn->projected;
    return pseudo_layer < rnn->directions ? rnn->input : rnn->projected * rnn->directions;
}
static size_t matrices_before(const Rnn *rnn, int pseudo_layer, int linear) {
    size_t elements = 0;
    for (int i = 0; i <= pseudo_layer; i++)
        for (int j = 0; j < (i < pseudo_layer ? 2 * rnn->gates : linear); j++)
            elements += rnn->hidden * columns(rnn, i, j < rnn->gates);
    return elements;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor, size_t *size) {
    const Rnn *rnn = (Rnn *)descriptor;
    size_t all = rnn->layers * rnn->directions;
    *size = (matrices_before(rnn, all, 0) + rnn->biases * all * 2 * rnn->gates * rnn->hidden) * rnn->bytes;
    return 0;
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor, int32_t pseudo_layer,
                                      size_t space_size, const void *space, int32_t linear,
                                      cudnnTensorDescriptor_t matrix, void **matrix_at, cudnnTensorDescriptor_t bias,
                                      void **bias_at) {
    const Rnn *rnn = (Rnn *)descriptor;
    size_t all = rnn->layers * rnn->directions, biases_before = (pseudo_layer * 2 * rnn->gates + linear) * rnn->hidden;
    cudnnDataType_t type = rnn->bytes == 8 ? CUDNN_DATA_DOUBLE : rnn->bytes == 4 ? CUDNN_DATA_FLOAT : CUDNN_DATA_HALF;
    int inputs = columns(rnn, pseudo_layer, linear < rnn->gates);
    if (matrix) {
        *(Tensor *)matrix = (Tensor){{1, rnn->hidden, inputs}, {rnn->hidden * inputs, inputs, 1}, type};
        *matrix_at = (char *)space + matrices_before(rnn, pseudo_layer, linear) * rnn->bytes;
    }
    if (bias) {
        *(Tensor *)bias = (Tensor){{1, rnn->hidden, 1}, {rnn->hidden, 1, 1}, type};
        *bias_at = rnn->biases ? (char *)space + (matrices_before(rnn, all, 0) + biases_before) * rnn->bytes : 0;
    }
    return 0;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t descriptor, int wanted, cudnnDataType_t *type,
                                         int *n, int dimensions[], int strides[]) {
    const Tensor *tensor = (Tensor *)descriptor;
    *type = tensor->type;
    *n = 3;
    memcpy(dimensions, tensor->dimensions, sizeof tensor->dimensions);
    memcpy(strides, tensor->strides, sizeof tensor->strides);
    return 0;
}
