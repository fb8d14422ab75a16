#include "train/plan/documents.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashlab::train {

std::int64_t most_documents(std::int64_t context) {
  return std::min(context, std::max<std::int64_t>(64, context / 8));
}

Status write_documents(const StepPlan& plan, const std::int32_t* tokens, std::int32_t* offsets) {
  const std::int64_t rows = plan.tensor(plan.tokens).shape[0];
  const std::int64_t context = plan.tensor(plan.tokens).shape[1];
  const std::int64_t micro_batches = plan.tensor(plan.documents).shape[0];
  const std::int64_t slots = plan.tensor(plan.documents).shape[1];
  const std::int64_t batch = rows / micro_batches, most = most_documents(context);
  for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
    std::int32_t* out = offsets + micro * slots;
    std::int64_t count = 0;
    for (std::int64_t row = 0; row < batch; ++row) {
      const std::int32_t* text = tokens + (micro * batch + row) * context;
      const std::int64_t before = count;
      for (std::int64_t i = 0; i < context; ++i) {
        if (i > 0 && text[i] != plan.end_of_text) continue;
        if (count - before == most) {
          return Status::invalid(
              {"documents",
               fmt::format("more than {} documents in {} tokens: token {} ends a text", most,
                           context, plan.end_of_text),
               fmt::format("at most {}", most),
               "--documents=N names another token; leave it out where texts are that short"});
        }
        out[count++] = static_cast<std::int32_t>(row * context + i);
      }
    }
    std::fill(out + count, out + slots, static_cast<std::int32_t>(batch * context));
  }
  return {};
}

}  // namespace flashlab::train
