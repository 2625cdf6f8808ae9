/* The level that the compiler was told to compile for. */
#if defined(__AVX512F__)
#define LEVEL "v4"
#elif defined(__AVX2__)
#define LEVEL "v3"
#elif defined(__SSE4_2__)
#define LEVEL "v2"
#else
#define LEVEL "v1"
#endif
