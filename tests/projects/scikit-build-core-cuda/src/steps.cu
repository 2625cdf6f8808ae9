#include "steps.cuh"

__device__ unsigned steps(unsigned long long start) {
    unsigned count = 0;
    for (; start != 1; ++count) {
        start = start % 2 ? 3 * start + 1 : start / 2;
    }
    return count;
}
