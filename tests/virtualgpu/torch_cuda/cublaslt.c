/* cuBLASLt's heuristic: one algorithm, which wants no workspace. */
#include <cublasLt.h>
#include <string.h>

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
    memset(results, 0, sizeof *results);
    return *found = 1, 0;
}
