#include "lab/report/ladder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "lab/report/group.h"
#include "lab/report/numbers.h"

namespace flashlab::lab::report {

std::vector<Rung> rungs_of(DeviceKind kind) {
  if (kind == DeviceKind::kCpu) {
    return {{"naive", "the formula, scores in memory"},
            {"fa2-plain", "tiles and a running softmax: no scores in memory"},
            {"cpu", "vectors, packed operands, register tiles"}};
  }
  return {{"naive", "the formula, scores in memory"},
          {"fa1", "tiles and a running softmax, a block per head"},
          {"fa1-vector", "128-bit loads"},
          {"fa1-shuffle", "rows reduced by warp shuffles"},
          {"fa1-mma", "tensor cores"},
          {"fa2", "fa1 with a block per tile of queries"},
          {"fa2-vector", "128-bit loads"},
          {"fa2-shuffle", "rows reduced by warp shuffles"},
          {"fa2-mma", "tensor cores"},
          {"fa2-tma", "tiles by the copy engine"},
          {"fa2-wgmma", "products of warpgroups"},
          {"fa3", "a warp that copies, warpgroups that multiply"},
          {"fa3-turns", "softmax beside the other's products"},
          {"fa3-frozen", "no running maximum"},
          {"sm80", "asynchronous copies, swizzles, registers kept between products"},
          {"sm90", "wgmma, TMA, a warp for the copies"}};
}

std::string idea_of(std::string_view name, DeviceKind kind) {
  for (const Rung& rung : rungs_of(kind)) {
    if (rung.name == name) return std::string(rung.idea);
  }
  constexpr Rung kOthers[] = {
      {"reference", "the formula in fp64, the yardstick of errors"},
      {"fa2-deterministic", "fa2 with gradients added in one order"},
      {"cublas", "peer: products of cuBLASLt, softmax between them, scores in memory"},
      {"cudnn", "peer: cuDNN's fused attention"},
      {"torch.cudnn", "peer: PyTorch's scaled_dot_product_attention over cuDNN"},
      {"torch.flash", "peer: PyTorch's scaled_dot_product_attention, its FlashAttention"},
      {"torch.efficient", "peer: PyTorch's scaled_dot_product_attention, memory-efficient kernels"},
      {"torch.math", "peer: PyTorch's products and softmax, scores in memory"},
      {"torch.flex", "peer: PyTorch's FlexAttention, compiled for the problem"},
      {"flash-attn", "peer: the package flash-attn"},
      {"xformers", "peer: memory_efficient_attention of xformers"}};
  for (const Rung& other : kOthers) {
    if (other.name == name) return std::string(other.idea);
  }
  return {};
}

std::string ladder_table(const ResultFile& file, const std::vector<Rung>& rungs) {
  std::string out;
  for (const Group& group : group_by_problem(file)) {
    for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
      const Measurement* bottom = nullptr;
      const Measurement* below = nullptr;
      std::string lines;
      for (const Rung& rung : rungs) {
        const Row* row = group.find(rung.name);
        const Measurement* result = row != nullptr ? row->ok(pass) : nullptr;
        if (result == nullptr || !(*result)[kMedianMs]) continue;
        if (bottom == nullptr) bottom = result;
        const auto gain = [&](const Measurement* base) {
          return base == nullptr || base == result ? std::string("-")
                                                   : format_ratio(speed_up(base, result));
        };
        lines += fmt::format("  {:<12} {:>10} {:>9} {:>9}  {}\n", std::string(rung.name),
                             format_ms((*result)[kMedianMs]), gain(below), gain(bottom), rung.idea);
        below = result;
      }
      if (lines.empty()) continue;
      out += fmt::format("{}ladder   {} · {}\n  {:<12} {:>10} {:>9} {:>9}  idea\n{}",
                         out.empty() ? "" : "\n", group.title(), group.passes[pass], "rung", "ms",
                         "gain", "in all", lines);
    }
  }
  return out;
}

}  // namespace flashlab::lab::report
