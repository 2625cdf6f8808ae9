// Which of the forms of an architecture the driver took: 2 from code for that architecture alone, 1 from plain code.
__global__ void form(float *out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL)
    *out = 2;
#else
    *out = 1;
#endif
}

extern "C" int which(float *value) {
    float *out;
    cudaError_t failed = cudaMalloc(&out, sizeof(float));
    if (failed) return failed;
    form<<<1, 1>>>(out);
    failed = cudaMemcpy(value, out, sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(out);
    return failed;
}
