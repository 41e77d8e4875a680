/* The calls to CUDA's libraries that may do nothing and succeed, or only have to make a handle. No header is included,
   so that one macro fits every signature. */

#define NOTHING(name) int name() { return 0; }

/* Kernels, streams, events, device memory. */
NOTHING(__cudaLaunchKernel) NOTHING(__cudaRegisterFatBinaryEnd) NOTHING(__cudaRegisterFunction)
NOTHING(__cudaRegisterVar) NOTHING(__cudaUnregisterFatBinary)
NOTHING(cudaLaunchKernel) NOTHING(cudaLaunchKernelExC) NOTHING(cudaLaunchCooperativeKernel)
NOTHING(cudaFuncSetAttribute) NOTHING(cudaKernelSetAttributeForDevice)
NOTHING(cudaDeviceSynchronize) NOTHING(cudaDeviceEnablePeerAccess) NOTHING(cudaThreadExchangeStreamCaptureMode)
NOTHING(cudaStreamDestroy) NOTHING(cudaStreamQuery) NOTHING(cudaStreamSynchronize) NOTHING(cudaStreamWaitEvent)
NOTHING(cudaEventDestroy) NOTHING(cudaEventQuery) NOTHING(cudaEventRecord) NOTHING(cudaEventRecordWithFlags)
NOTHING(cudaEventSynchronize) NOTHING(cudaMemset) NOTHING(cudaMemsetAsync) NOTHING(cudaMemcpyPeerAsync)
NOTHING(cudaMemcpyToSymbol) NOTHING(cudaProfilerStart) NOTHING(cudaProfilerStop)
NOTHING(nvmlInit_v2)
NOTHING(cuCtxSetCurrent) NOTHING(cuDevicePrimaryCtxRetain) NOTHING(cuLaunchKernel)
NOTHING(cuLaunchCooperativeKernel) NOTHING(cuFuncSetAttribute) NOTHING(cuTensorMapEncodeTiled)
NOTHING(cuModuleUnload) NOTHING(cuFuncSetCacheConfig)

/* What cuDNN looks for in a driver before it plans an engine that is compiled when run. */
NOTHING(cuLinkCreate) NOTHING(cuLinkAddData) NOTHING(cuLinkComplete) NOTHING(cuLinkDestroy) NOTHING(cuLibraryUnload)
NOTHING(cuKernelSetAttribute) NOTHING(cuOccupancyMaxPotentialClusterSize) NOTHING(cuLaunchKernelEx)
NOTHING(cuStreamGetCtx) NOTHING(cuCtxGetLimit) NOTHING(cuCtxPopCurrent) NOTHING(cuCtxPushCurrent)

/* cuBLAS and cuBLASLt: products, solvers, settings. */
#define FOR_EACH_TYPE(name) \
    NOTHING(cublasS##name) NOTHING(cublasD##name) NOTHING(cublasC##name) NOTHING(cublasZ##name)
FOR_EACH_TYPE(gemm_v2) FOR_EACH_TYPE(gemmStridedBatched) FOR_EACH_TYPE(gemv_v2) FOR_EACH_TYPE(trsm_v2)
FOR_EACH_TYPE(trsmBatched) FOR_EACH_TYPE(gelsBatched) FOR_EACH_TYPE(geqrfBatched) FOR_EACH_TYPE(getrfBatched)
FOR_EACH_TYPE(getrsBatched)
NOTHING(cublasSdot_v2) NOTHING(cublasDdot_v2) NOTHING(cublasCdotc_v2) NOTHING(cublasCdotu_v2) NOTHING(cublasZdotc_v2)
NOTHING(cublasZdotu_v2) NOTHING(cublasDotEx) NOTHING(cublasSgemmEx) NOTHING(cublasGemmEx)
NOTHING(cublasGemmStridedBatchedEx) NOTHING(cublasDestroy_v2) NOTHING(cublasSetMathMode)
NOTHING(cublasSetPointerMode_v2) NOTHING(cublasSetSmCountTarget) NOTHING(cublasSetStream_v2)
NOTHING(cublasSetWorkspace_v2) NOTHING(cublasLtMatmul) NOTHING(cublasLtMatmulAlgoCheck)
NOTHING(cublasLtMatmulAlgoConfigGetAttribute) NOTHING(cublasLtMatmulAlgoConfigSetAttribute)
NOTHING(cublasLtMatmulAlgoInit) NOTHING(cublasLtMatmulDescDestroy) NOTHING(cublasLtMatmulDescSetAttribute)
NOTHING(cublasLtMatmulPreferenceDestroy) NOTHING(cublasLtMatmulPreferenceSetAttribute)
NOTHING(cublasLtMatrixLayoutDestroy) NOTHING(cublasLtMatrixLayoutSetAttribute)

/* cuDNN: executing, and the older interface's settings. */
NOTHING(cudnnBackendExecute) NOTHING(cudnnBatchNormalizationBackwardEx)
NOTHING(cudnnBatchNormalizationForwardInference) NOTHING(cudnnBatchNormalizationForwardTrainingEx)
NOTHING(cudnnCTCLoss) NOTHING(cudnnCTCLoss_v8) NOTHING(cudnnPoolingForward) NOTHING(cudnnRNNForward)
NOTHING(cudnnRNNBackwardData_v8) NOTHING(cudnnRNNBackwardWeights_v8)
NOTHING(cudnnSetActivationDescriptor) NOTHING(cudnnSetCTCLossDescriptorEx) NOTHING(cudnnSetCTCLossDescriptor_v9)
NOTHING(cudnnSetFilterNdDescriptor) NOTHING(cudnnSetPooling2dDescriptor)
NOTHING(cudnnSetSpatialTransformerNdDescriptor) NOTHING(cudnnSetStream)
NOTHING(cudnnSetTensorNdDescriptor) NOTHING(cudnnSpatialTfGridGeneratorBackward)
NOTHING(cudnnSpatialTfGridGeneratorForward) NOTHING(cudnnSpatialTfSamplerBackward)
NOTHING(cudnnSpatialTfSamplerForward)
NOTHING(cudnnDestroyActivationDescriptor) NOTHING(cudnnDestroyCTCLossDescriptor)
NOTHING(cudnnDestroyConvolutionDescriptor)
NOTHING(cudnnDestroyFilterDescriptor)
NOTHING(cudnnDestroySpatialTransformerDescriptor)

/* What gives back a handle through its first argument, or a number through its second or third. */
void *malloc(unsigned long);
#define MAKES(name) int name(void **made) { return *made = malloc(8), 0; }
MAKES(cublasCreate_v2) MAKES(cublasLtMatmulDescCreate) MAKES(cublasLtMatmulPreferenceCreate)
MAKES(cublasLtMatrixLayoutCreate) MAKES(cudnnCreate) MAKES(cudnnCreateActivationDescriptor)
MAKES(cudnnCreateCTCLossDescriptor) MAKES(cudnnCreateConvolutionDescriptor)
MAKES(cudnnCreateFilterDescriptor) MAKES(cudnnCreatePoolingDescriptor)
MAKES(cudnnCreateSpatialTransformerDescriptor)
MAKES(cuModuleLoad) MAKES(cuModuleLoadData) MAKES(cuModuleLoadDataEx) MAKES(cuModuleGetFunction)
MAKES(cuLibraryLoadData) MAKES(cuLibraryLoadFromFile) MAKES(cuLibraryGetKernel) MAKES(cuKernelGetFunction)
#define FIRST_ZERO(name) int name(int *value) { return *value = 0; }
FIRST_ZERO(cuDeviceGet) FIRST_ZERO(cuKernelGetAttribute) FIRST_ZERO(cuFuncGetAttribute)
#define NAMES(name) int name(int error, const char **text) { return *text = "stand-in", 0; }
NAMES(cuGetErrorName) NAMES(cuGetErrorString)
#define GIVES_ZERO(name) int name(void *of, int *value) { return *value = 0; }
GIVES_ZERO(cublasGetMathMode) GIVES_ZERO(cublasGetPointerMode_v2)
int cudnnGetStream(void *of, void **stream) { return *stream = 0, 0; }
unsigned long cublasLtGetVersion(void) { return 130400; }
