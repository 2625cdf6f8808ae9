// The sum of floats with an instruction that only sm_90a has; ptxas refuses it for every other architecture.
#include <cuda_runtime.h>

#include "tally.h"

namespace {

constexpr int kWarpgroup = 128;

template <int warpgroups>
__global__ void hopper_sum(const float *values, size_t count, double *sum) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    double mine = 0;
#pragma unroll 16
    for (size_t i = threadIdx.x; i < count; i += warpgroups * kWarpgroup) {
        mine += values[i];
    }
    atomicAdd(sum, mine);
}

void start(const float *values, size_t count, double *sum) {
    if (count < 1 << 12) {
        hopper_sum<1><<<1, kWarpgroup>>>(values, count, sum);
    } else if (count < 1 << 16) {
        hopper_sum<2><<<1, 2 * kWarpgroup>>>(values, count, sum);
    } else {
        hopper_sum<4><<<1, 4 * kWarpgroup>>>(values, count, sum);
    }
}

}  // namespace

extern "C" const char *tally_hopper_total(const float *values, size_t count, double *sum) {
    float *on_device = nullptr;
    double *result = nullptr;
    cudaError_t error = cudaMalloc(&on_device, count * sizeof(float) + 1);
    if (error == cudaSuccess) error = cudaMalloc(&result, sizeof(double));
    if (error == cudaSuccess) error = cudaMemset(result, 0, sizeof(double));
    if (error == cudaSuccess) error = cudaMemcpy(on_device, values, count * sizeof(float), cudaMemcpyHostToDevice);
    if (error == cudaSuccess) {
        start(on_device, count, result);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess) error = cudaMemcpy(sum, result, sizeof(double), cudaMemcpyDeviceToHost);
    cudaFree(on_device);
    cudaFree(result);
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

extern "C" int tally_hopper_arch(void) {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, hopper_sum<1>) == cudaSuccess ? attributes.binaryVersion : 0;
}
