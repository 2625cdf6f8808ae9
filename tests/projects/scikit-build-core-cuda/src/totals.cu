// The steps of all sequences that start at 1 to a last number, added up.
#include <cuda_runtime.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "collatz.hpp"
#include "steps.cuh"

namespace {

constexpr int kThreads = 128;
constexpr unsigned long long kFew = 1 << 16;

// Each thread takes *each* starts in a row.
template <int each>
__global__ void add_steps(unsigned long long last, unsigned long long *sum) {
    unsigned long long first = 1 + each * (blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x);
    unsigned long long mine = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) {
        if (first + i <= last) {
            mine += steps(first + i);
        }
    }
    atomicAdd(sum, mine);
}

template <int each>
void start(unsigned long long last, unsigned long long *sum) {
    unsigned long long blocks = last / (each * kThreads) + 1;
    add_steps<each><<<static_cast<unsigned>(blocks), kThreads>>>(last, sum);
}

void check(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

class Counter {
  public:
    Counter() {
        check(cudaMalloc(&value_, sizeof *value_));
        check(cudaMemset(value_, 0, sizeof *value_));
    }
    ~Counter() { cudaFree(value_); }
    Counter(const Counter &) = delete;
    Counter &operator=(const Counter &) = delete;

    unsigned long long *get() const { return value_; }
    unsigned long long read() const {
        unsigned long long value = 0;
        check(cudaMemcpy(&value, value_, sizeof value, cudaMemcpyDeviceToHost));
        return value;
    }

  private:
    unsigned long long *value_ = nullptr;
};

}  // namespace

namespace collatz {

int devices() {
    int count = 0;
    check(cudaGetDeviceCount(&count));
    return count;
}

unsigned long long total(unsigned long long last) {
    Counter sum;
    if (last < kFew) {
        start<8>(last, sum.get());
    } else {
        start<64>(last, sum.get());
    }
    check(cudaGetLastError());
    return sum.read();
}

std::map<std::string, int> archs() {
    devices();
    cudaFuncAttributes attributes{};
    bool is_there = cudaFuncGetAttributes(&attributes, add_steps<8>) == cudaSuccess;
    cudaGetLastError();
    return {{"add_steps", is_there ? attributes.binaryVersion : 0}};
}

// Host code of some size: sequences are looked up in those that are known.
unsigned long long total_on_host(unsigned long long last) {
    std::vector<unsigned> known(last + 1, 0);
    for (unsigned long long start = 2; start <= last; ++start) {
        unsigned long long number = start;
        unsigned count = 0;
        while (number >= start) {
            number = number % 2 ? 3 * number + 1 : number / 2;
            ++count;
        }
        known[start] = count + known[number];
    }
    return std::accumulate(known.begin(), known.end(), 0ull);
}

}  // namespace collatz
