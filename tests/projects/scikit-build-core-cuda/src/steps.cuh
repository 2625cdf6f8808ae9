#pragma once

// How many steps of the Collatz sequence lead from *start*, at least 1, to 1.
__device__ unsigned steps(unsigned long long start);
