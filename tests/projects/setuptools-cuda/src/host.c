/* What a build without CUDA has in the place of sums.cu and hopper.cu: no GPU, and the same sums on the host. */
#include <math.h>

#include "tally.h"

const char *tally_devices(int *count) {
    *count = 0;
    return NULL;
}

const char *tally_archs(int *sums, int *hopper) {
    *sums = 0;
    *hopper = 0;
    return NULL;
}

/* Partial sums, so that a compiler may add several values at once without changing the result. */
const char *tally_total(const float *values, size_t count, double *sum) {
    double partial[8] = {0};
    size_t whole = count - count % 8;
    for (size_t i = 0; i < whole; i += 8) {
        for (size_t j = 0; j < 8; ++j) partial[j] += values[i + j];
    }
    for (size_t i = whole; i < count; ++i) partial[0] += values[i];
    *sum = 0;
    for (size_t j = 0; j < 8; ++j) *sum += partial[j];
    return NULL;
}

const char *tally_hopper_total(const float *values, size_t count, double *sum) {
    return tally_total(values, count, sum);
}

double tally_host_norm(const float *values, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += values[i] * values[i] + 0.5f * values[i];
    return sqrt(sum);
}
