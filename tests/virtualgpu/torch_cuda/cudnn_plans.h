/* What cudnn.c hands on while `planning()`. */
#include <cudnn.h>

int planning(void);
cudnnStatus_t plan_create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor, const void *caller);
cudnnStatus_t plan_destroy(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t plan_set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, int64_t count, const void *data, const void *caller);
cudnnStatus_t plan_get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count, void *data);
cudnnStatus_t plan_finalize(cudnnBackendDescriptor_t descriptor);
void plan_last_error(char *message, size_t size);

typedef struct {
    cudnnRNNAlgo_t algorithm;
    cudnnRNNMode_t cell;
    cudnnRNNBiasMode_t bias;
    cudnnDirectionMode_t direction;
    cudnnRNNInputMode_t mode;
    cudnnDataType_t type, math;
    cudnnMathType_t math_type;
    int input, hidden, projected, layers;
    unsigned flags;
    float dropout;
} RnnSettings;
typedef struct { cudnnDataType_t type; cudnnRNNDataLayout_t layout; int length, batch, width; } RnnData;
void plan_rnn(const RnnSettings *rnn, const RnnData *data, cudnnForwardMode_t mode, size_t sizes[2]);
