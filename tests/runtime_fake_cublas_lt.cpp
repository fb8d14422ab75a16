// Stands in for cuBLASLt beside the stand-in for the driver, in the same library. It offers four
// algorithms, numbered from fake_first_algorithm on, for any product: they take 3, 1 and 2 ms, and
// the last one fails when it runs. The second has a form with a workspace, which takes 0.5 ms more.
// Short ones take a hundredth and 0.02 ms, but where a graph is captured the second one takes 0.03
// ms more. A long product whose rows are no whole tiles is offered two others, of half a
// millisecond; only the first of these serves products of whole tiles, too.

#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {

extern float fake_clock_ms, fake_captured_ms;
extern bool fake_capturing;

std::uint64_t fake_first_algorithm = 100;
std::uint64_t fake_algorithm = 0;  // that ran last
void* fake_handle = nullptr;       // by which it ran
int fake_products = 0;             // that ran
bool fake_short = false;           // whether products are

static std::size_t most_workspace_bytes = 0;  // as a preference says
static std::uint64_t last_rows = 0;           // of a layout, counted as FlashLab does

int cublasLtCreate(void** handle) {
  static char handles[16];
  static std::size_t made = 0;
  *handle = &handles[made++];
  return 0;
}
std::size_t cublasLtGetVersion() {
  return 130100;
}
const char* cublasLtGetStatusString(int) {
  return "CUBLAS_STATUS_EXECUTION_FAILED";
}

int cublasLtMatmulDescCreate(void** made, int, int) {
  *made = &fake_algorithm;
  return 0;
}
int cublasLtMatrixLayoutCreate(void** made, int, std::uint64_t, std::uint64_t rows, std::int64_t) {
  last_rows = rows;
  *made = &fake_algorithm;
  return 0;
}
int cublasLtMatmulPreferenceCreate(void** made) {
  *made = &fake_algorithm;
  return 0;
}
int cublasLtMatmulDescSetAttribute(void*, int, const void*, std::size_t) {
  return 0;
}
int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, std::size_t) {
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(void*, int which, const void* value, std::size_t bytes) {
  if (which == 1) std::memcpy(&most_workspace_bytes, value, bytes);
  return 0;
}
int cublasLtMatmulDescDestroy(void*) {
  return 0;
}
int cublasLtMatrixLayoutDestroy(void*) {
  return 0;
}
int cublasLtMatmulPreferenceDestroy(void*) {
  return 0;
}

struct Heuristic {
  std::uint64_t algorithm[8];
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int wanted,
                                   Heuristic* out, int* found) {
  if (last_rows > 1024 && last_rows % 128 != 0) {
    *found = 2;
    for (std::uint64_t i = 0; i < 2; ++i) out[i] = {.algorithm = {fake_first_algorithm + 10 + i}};
    return 0;
  }
  *found = wanted < 4 ? wanted : 4;
  for (int i = 0; i < *found; ++i) {
    out[i] = {};
    out[i].algorithm[0] = fake_first_algorithm + static_cast<std::uint64_t>(i);
    out[i].workspace_bytes = i == 1 && most_workspace_bytes > 0 ? 64 : 0;
  }
  return 0;
}

int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*,
                            const std::uint64_t* algorithm, Heuristic* out) {
  *out = {};
  return algorithm[0] == fake_first_algorithm + 10 ? 0 : 15;
}

int cublasLtMatmul(void* handle, void*, const void*, const void*, void*, const void*, void*,
                   const void*, const void*, void*, void*, void*, const std::uint64_t* algorithm,
                   void*, std::size_t workspace_bytes, void*) {
  constexpr float kMilliseconds[] = {3, 1, 2};
  const std::uint64_t which = algorithm[0] - fake_first_algorithm;
  if (which > 2 && which < 10) return 13;
  float own = which < 10 ? kMilliseconds[which] + (workspace_bytes > 0 ? 0.5f : 0.0f) : 0.5f;
  if (fake_short) own = 0.02f + own / 100;
  if (fake_short && fake_capturing && which == 1) own += 0.03f;
  (fake_capturing ? fake_captured_ms : fake_clock_ms) += own;
  fake_algorithm = algorithm[0];
  fake_handle = handle;
  ++fake_products;
  return 0;
}

}  // extern "C"
