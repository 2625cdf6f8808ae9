#pragma once
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Each gives NULL, or what CUDA says has gone wrong.
const char *tally_devices(int *count);
const char *tally_total(const float *values, size_t count, double *sum);
const char *tally_hopper_total(const float *values, size_t count, double *sum);
// The architecture of the code that the first GPU runs, such as 90; 0 where there is none for it.
const char *tally_archs(int *sums, int *hopper);

double tally_host_norm(const float *values, size_t count);
int tally_hopper_arch(void);

#ifdef __cplusplus
}
#endif
