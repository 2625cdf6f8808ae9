// A second translation unit, with a fatbin of its own.
#include <cuda_runtime.h>

__device__ float moved(float value) { return value + 0.5f; }

__global__ void shifted(float *values) { values[threadIdx.x] = moved(values[threadIdx.x]); }

extern "C" int shift(float *values) {
    float *device = nullptr;
    cudaMalloc(&device, 32 * sizeof(float));
    cudaMemcpy(device, values, 32 * sizeof(float), cudaMemcpyHostToDevice);
    shifted<<<1, 32>>>(device);
    cudaMemcpy(values, device, 32 * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(device);
    return static_cast<int>(cudaDeviceSynchronize()) | static_cast<int>(cudaGetLastError());
}
