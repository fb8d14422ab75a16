// Attention over memory that is already there: one query row of zeros against four keys weighs
// them equally, so O is the mean of the values and LSE is log(4).
#include <cstdio>
#include <vector>

#include "flashlab/flashlab.h"

int main() {
  auto context = flashlab::Context::create();
  if (!context.ok()) {
    std::fprintf(stderr, "%s\n", context.status().message().c_str());
    return 1;
  }
  const std::vector<float> q(1 * 1 * 1 * 8, 0), k(1 * 4 * 1 * 8, 1);  // [batch, seqlen, heads, dim]
  const std::vector<float> v = {1, 2, 3, 4, 5, 6, 7, 8};              // [1, 4, 1, 2]
  std::vector<float> o(2), lse(1);

  const flashlab::Status status =
      flashlab::forward(*context, {},
                        {.q = flashlab::tensor(q.data(), {1, 1, 1, 8}),
                         .k = flashlab::tensor(k.data(), {1, 4, 1, 8}),
                         .v = flashlab::tensor(v.data(), {1, 4, 1, 2}),
                         .o = flashlab::tensor(o.data(), {1, 1, 1, 2}),
                         .lse = flashlab::tensor(lse.data(), {1, 1, 1})});
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("O[0] = %.4f %.4f  LSE = %.6f\n", o[0], o[1], lse[0]);
}
