// One translation unit of a library whose kernels are run before and after slimming.
#include <cuda_runtime.h>

__global__ void scaled(float *values, float factor) { values[threadIdx.x] = values[threadIdx.x] * factor + threadIdx.x; }

// 0, or CUDA's error; *values* are 32 floats
extern "C" int scale(float *values, float factor) {
    float *device = nullptr;
    cudaMalloc(&device, 32 * sizeof(float));
    cudaMemcpy(device, values, 32 * sizeof(float), cudaMemcpyHostToDevice);
    scaled<<<1, 32>>>(device, factor);
    cudaMemcpy(values, device, 32 * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(device);
    return static_cast<int>(cudaDeviceSynchronize()) | static_cast<int>(cudaGetLastError());
}
