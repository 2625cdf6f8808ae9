// The sum of floats: one partial sum for each block, added up on the host.
#include <cuda_runtime.h>

#include <cmath>
#include <vector>

#include "tally.h"

namespace {

constexpr int kBlocks = 32;

template <int threads>
__global__ void partial_sums(const float *values, size_t count, double *sums) {
    __shared__ double shared[threads];
    double mine = 0;
#pragma unroll 16
    for (size_t i = blockIdx.x * threads + threadIdx.x; i < count; i += size_t{gridDim.x} * threads) {
        mine += values[i];
    }
    shared[threadIdx.x] = mine;
#pragma unroll
    for (int step = threads / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) {
            shared[threadIdx.x] += shared[threadIdx.x + step];
        }
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = shared[0];
    }
}

// The more values there are, the more threads a block has.
void start(const float *values, size_t count, double *sums) {
    if (count < 1 << 12) {
        partial_sums<128><<<kBlocks, 128>>>(values, count, sums);
    } else if (count < 1 << 16) {
        partial_sums<256><<<kBlocks, 256>>>(values, count, sums);
    } else if (count < 1 << 20) {
        partial_sums<512><<<kBlocks, 512>>>(values, count, sums);
    } else {
        partial_sums<1024><<<kBlocks, 1024>>>(values, count, sums);
    }
}

}  // namespace

extern "C" const char *tally_devices(int *count) {
    cudaError_t error = cudaGetDeviceCount(count);
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

extern "C" const char *tally_total(const float *values, size_t count, double *sum) {
    std::vector<double> sums(kBlocks);
    float *on_device = nullptr;
    double *partial = nullptr;
    cudaError_t error = cudaMalloc(&on_device, count * sizeof(float) + 1);
    if (error == cudaSuccess) error = cudaMalloc(&partial, kBlocks * sizeof(double));
    if (error == cudaSuccess) error = cudaMemcpy(on_device, values, count * sizeof(float), cudaMemcpyHostToDevice);
    if (error == cudaSuccess) {
        start(on_device, count, partial);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess) {
        error = cudaMemcpy(sums.data(), partial, kBlocks * sizeof(double), cudaMemcpyDeviceToHost);
    }
    cudaFree(on_device);
    cudaFree(partial);
    *sum = 0;
    for (double one : sums) *sum += one;
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

extern "C" const char *tally_archs(int *sums, int *hopper) {
    cudaFuncAttributes attributes{};
    cudaError_t error = cudaFuncGetAttributes(&attributes, partial_sums<128>);
    bool is_missing = error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction;
    *sums = error == cudaSuccess ? attributes.binaryVersion : 0;
    *hopper = tally_hopper_arch();
    cudaGetLastError();
    return error == cudaSuccess || is_missing ? nullptr : cudaGetErrorString(error);
}

// Host code that a compiler turns into vector instructions of whatever level it may use.
extern "C" double tally_host_norm(const float *values, size_t count) {
    std::vector<float> squares(count);
    for (size_t i = 0; i < count; ++i) squares[i] = values[i] * values[i] + 0.5f * values[i];
    double sum = 0;
    for (float square : squares) sum += square;
    return std::sqrt(sum);
}
