/* Train xgboost through its C interface on rows made from a fixed seed, and print a hash of its predictions.

   train.exe xgboost.dll */
#include <windows.h>
#include <stdio.h>
#include <stdint.h>
typedef void *H;
#define F(name) (void*)GetProcAddress(lib, #name)
int main(int c, char **v) {
  HMODULE lib = LoadLibraryA(v[1]);
  if (!lib) { printf("not loaded %lu\n", GetLastError()); return 1; }
  int (*mat)(const float*, uint64_t, uint64_t, float, H*) = F(XGDMatrixCreateFromMat);
  int (*info)(H, const char*, const float*, uint64_t) = F(XGDMatrixSetFloatInfo);
  int (*make)(const H*, uint64_t, H*) = F(XGBoosterCreate);
  int (*par)(H, const char*, const char*) = F(XGBoosterSetParam);
  int (*upd)(H, int, H) = F(XGBoosterUpdateOneIter);
  int (*pred)(H, H, int, unsigned, int, uint64_t*, const float**) = F(XGBoosterPredict);
  const char *(*err)(void) = F(XGBGetLastError);
  enum { R = 2000, C = 10 };
  static float x[R * C], y[R];
  unsigned s = 1;
  for (int i = 0; i < R * C; i++) { s = s * 1664525u + 1013904223u; x[i] = (s >> 8) / 16777216.0f; }
  for (int i = 0; i < R; i++) y[i] = x[i * C] * 3 + x[i * C + 1] * x[i * C + 2];
  H d, b; uint64_t n; const float *p;
  if (mat(x, R, C, -1, &d)) { printf("mat %s\n", err()); return 1; }
  if (info(d, "label", y, R)) { printf("info %s\n", err()); return 1; }
  if (make(&d, 1, &b)) { printf("make %s\n", err()); return 1; }
  par(b, "tree_method", "hist"); par(b, "nthread", "1"); par(b, "max_depth", "4");
  for (int i = 0; i < 20; i++) if (upd(b, i, d)) { printf("upd %s\n", err()); return 1; }
  if (pred(b, d, 0, 0, 0, &n, &p)) { printf("pred %s\n", err()); return 1; }
  uint64_t h = 14695981039346656037ull;
  for (uint64_t i = 0; i < n * 4; i++) h = (h ^ ((const uint8_t*)p)[i]) * 1099511628211ull;
  printf("%llu predictions hash %016llx first %f label %f\n", (unsigned long long)n, (unsigned long long)h, p[0], y[0]);
  return 0;
}
