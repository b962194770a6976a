// cuBLAS without a GPU (libcublas.so of CUDA 12 or 13): handles and a record of the products. It computes nothing.
#include "record.h"

#include <cublas_v2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct cublasContext {
    int number;
    cudaStream_t stream;
    cublasMath_t math;
    cublasPointerMode_t pointers;
};

int cublas_missing(const char *name) { return fakecuda_missing(name, CUBLAS_STATUS_NOT_SUPPORTED); }

EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    static int count;
    *handle = calloc(1, sizeof **handle);
    (*handle)->number = __sync_add_and_fetch(&count, 1);
    fakecuda_linef("call cublasCreate %d", (*handle)->number);
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { return fakecuda_linef("call cublasDestroy %d", handle->number), CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    fakecuda_linef("call cublasSetStream %d %s", handle->number, fakecuda_stream(stream));
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream) { return *stream = handle->stream, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t size)
{
    fakecuda_linef("call cublasSetWorkspace %d %p %zu", handle->number, workspace, size);
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    handle->math = mode;
    fakecuda_linef("call cublasSetMathMode %d %d", handle->number, (int)mode);
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) { return *mode = handle->math, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode)
{
    handle->pointers = mode;
    fakecuda_linef("call cublasSetPointerMode %d %d", handle->number, (int)mode);
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) { return *mode = handle->pointers, CUBLAS_STATUS_SUCCESS; }

// scalar_bits are the bits of a factor on the host, which has the type of the computation.
static unsigned scalar_bits(const void *scalar, cublasComputeType_t type)
{
    int half = type == CUBLAS_COMPUTE_16F || type == CUBLAS_COMPUTE_16F_PEDANTIC;
    return half ? *(const uint16_t *)scalar : *(const uint32_t *)scalar;
}
EXPORT cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t a_operation, cublasOperation_t b_operation, int m, int n, int k,
                                                 const void *alpha, const void *a,
                                                 cudaDataType a_type, int a_rows, long long a_stride, const void *b, cudaDataType b_type, int b_rows, long long b_stride, const void *beta,
                                                 void *c, cudaDataType c_type, int c_rows, long long c_stride, int batch, cublasComputeType_t type, cublasGemmAlgo_t algorithm)
{
    fakecuda_linef("call gemm handle=%d stream=%s math=%d %d%d %dx%dx%d alpha=%x a=%p:%d:%d:%lld b=%p:%d:%d:%lld beta=%x"
                   " c=%p:%d:%d:%lld batch=%d type=%d algorithm=%d", handle->number,
                   fakecuda_stream(handle->stream), (int)handle->math, (int)a_operation, (int)b_operation, m, n, k, scalar_bits(alpha, type), a, (int)a_type, a_rows, a_stride, b,
                   (int)b_type, b_rows, b_stride, scalar_bits(beta, type), c, (int)c_type, c_rows, c_stride, batch, (int)type, (int)algorithm);
    return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_operation, cublasOperation_t b_operation, int m, int n, int k, const void *alpha, const void *a,
                                   cudaDataType a_type, int a_rows, const void *b, cudaDataType b_type, int b_rows, const void *beta, void *c, cudaDataType c_type, int c_rows,
                                   cublasComputeType_t type, cublasGemmAlgo_t algorithm)
{
    return cublasGemmStridedBatchedEx(handle, a_operation, b_operation, m, n, k, alpha, a, a_type, a_rows, 0, b, b_type, b_rows, 0, beta, c, c_type, c_rows, 0, 1, type, algorithm);
}
EXPORT cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t a_operation, cublasOperation_t b_operation, int m, int n, int k,
                                     const float *alpha, const float *a, int a_rows,
                                     const float *b, int b_rows, const float *beta, float *c, int c_rows)
{
    return cublasGemmEx(handle, a_operation, b_operation, m, n, k, alpha, a, CUDA_R_32F, a_rows, b, CUDA_R_32F, b_rows, beta, c, CUDA_R_32F, c_rows,
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
