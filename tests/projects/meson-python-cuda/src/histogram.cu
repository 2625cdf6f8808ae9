// How often each byte occurs: a histogram for each block in shared memory, added up in global memory.
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>

#include "histo.hpp"

namespace {

constexpr int kBins = 256;
constexpr int kBlocks = 16;
constexpr int kCopies = 4;
constexpr std::size_t kFew = 1 << 16;

// With several *copies*, neighbouring threads that meet the same byte do not wait for each other.
template <int copies>
__global__ void count_bytes(const std::uint8_t *bytes, std::size_t count, std::uint32_t *bins) {
    __shared__ std::uint32_t mine[copies][kBins];
#pragma unroll
    for (int copy = 0; copy < copies; ++copy) {
        mine[copy][threadIdx.x] = 0;
    }
    __syncthreads();
#pragma unroll 32
    for (std::size_t i = blockIdx.x * kBins + threadIdx.x; i < count; i += std::size_t{gridDim.x} * kBins) {
        atomicAdd(&mine[threadIdx.x % copies][bytes[i]], 1u);
    }
    __syncthreads();
#pragma unroll
    for (int copy = 0; copy < copies; ++copy) {
        atomicAdd(&bins[threadIdx.x], mine[copy][threadIdx.x]);
    }
}

void check(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

template <typename Value>
class Buffer {
  public:
    explicit Buffer(std::size_t count) { check(cudaMalloc(&data_, std::max<std::size_t>(count, 1) * sizeof(Value))); }
    ~Buffer() { cudaFree(data_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    Value *get() const { return data_; }

  private:
    Value *data_ = nullptr;
};

}  // namespace

namespace histo {

int devices() {
    int count = 0;
    check(cudaGetDeviceCount(&count));
    return count;
}

Bins histogram(const std::uint8_t *bytes, std::size_t count) {
    Bins bins{};
    Buffer<std::uint8_t> on_device(count);
    Buffer<std::uint32_t> counted(kBins);
    check(cudaMemcpy(on_device.get(), bytes, count, cudaMemcpyHostToDevice));
    check(cudaMemset(counted.get(), 0, sizeof bins));
    if (count < kFew) {
        count_bytes<1><<<kBlocks, kBins>>>(on_device.get(), count, counted.get());
    } else {
        count_bytes<8><<<kBlocks, kBins>>>(on_device.get(), count, counted.get());
    }
    check(cudaGetLastError());
    check(cudaMemcpy(bins.data(), counted.get(), sizeof bins, cudaMemcpyDeviceToHost));
    return bins;
}

std::map<std::string, int> archs() {
    devices();
    cudaFuncAttributes attributes{};
    bool is_there = cudaFuncGetAttributes(&attributes, count_bytes<1>) == cudaSuccess;
    cudaGetLastError();
    return {{"count_bytes", is_there ? attributes.binaryVersion : 0}};
}

// Host code that a compiler turns into vector instructions: several histograms, added up.
Bins histogram_on_host(const std::uint8_t *bytes, std::size_t count) {
    std::array<Bins, kCopies> copies{};
    for (std::size_t i = 0; i < count; ++i) {
        ++copies[i % kCopies][bytes[i]];
    }
    Bins bins{};
    for (const Bins &copy : copies) {
        std::transform(bins.begin(), bins.end(), copy.begin(), bins.begin(), [](auto a, auto b) { return a + b; });
    }
    return bins;
}

}  // namespace histo
