// Proves that `check` can fail. This program carries CPU kernels with deliberate faults
// (src/cpu/simd/mutation.h) instead of the library's; its arguments say which fault, whether the
// faulty code belongs to the forward (f) or backward (b) pass, and of which instruction set the
// kernels are: some faults only vectors can have. Without a fault every case below passes; with
// one, at least one case must be rejected in an output of that pass.

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "cpu/simd/mutation.h"
#include "flashlab/flashlab.h"
#include "lab/check/check.h"

namespace flashlab::internal::simd {
Mutation kMutation = Mutation::kNone;
}  // namespace flashlab::internal::simd

namespace flashlab::lab {
namespace {

using cases::Case;

// A few problems that between them use every feature a fault can break: more keys than two blocks
// of any planner, grouped heads, masks, lengths beside tile edges, dLSE.
std::vector<Case> problems() {
  Case base;
  base.batch = 1;
  base.heads_q = 4;
  base.heads_k = 2;
  base.seqlen_q = 50;
  base.seqlen_k = 1101;
  base.head_dim = 24;
  base.head_dim_v = 24;
  base.lse_gradient = true;
  std::vector<Case> list;
  const auto add = [&](const char* name, auto&& change) {
    Case problem = base;
    problem.name = name;
    change(problem);
    list.push_back(problem);
  };
  add("plain", [](Case&) {});
  add("causal", [](Case& c) { c.causal = Causal::kBottomRight; });
  add("causal-square", [](Case& c) {
    c.seqlen_q = c.seqlen_k = 131;
    c.causal = Causal::kTopLeft;
  });
  add("bool-mask", [](Case& c) { c.mask = cases::MaskKind::kBool; });
  add("additive-mask", [](Case& c) {
    c.seqlen_k = 67;
    c.mask = cases::MaskKind::kAdditive;
  });
  add("large-scores", [](Case& c) {
    c.seqlen_k = 700;
    c.fill = cases::Fill::kLargeScores;
  });
  add("tail", [](Case& c) { c.seqlen_k = 33; });
  for (const Case& pair : cases::pair_cases(64, DType::kFp32)) {
    if (pair.name == "fp32-pair-dropout-additive-mask-shifted-d64") list.push_back(pair);
  }
  return list;
}

int run(std::string_view mutation, std::string_view pass, CpuIsa isa) {
  if (!supported(isa)) return 77;  // ctest: skipped
  auto context = Context::create({.threads = 2, .cpu_isa = isa});
  if (!context.ok()) {
    std::fprintf(stderr, "%s\n", context.status().message().c_str());
    return 1;
  }
  CheckOptions options;
  options.repeat = false;
  int rejected = 0;
  for (const Case& problem : problems()) {
    const CheckReport report = check_case(*context, problem, "cpu", options);
    if (report.status != RunStatus::kOk) {
      std::fprintf(stderr, "%s\n", report.failure().c_str());
      return 1;
    }
    for (const CheckItem& item : report.items) {
      if (item.passed) continue;
      const bool of_pass = item.what.starts_with(pass == "f" ? "forward" : "backward");
      std::printf("rejected: %s: %s: %s\n", report.problem.name.c_str(), item.what.c_str(),
                  item.message.c_str());
      rejected += mutation == "0" || of_pass;
    }
    if (rejected > 0) break;  // one case that sees the fault will do
  }
  const bool right = mutation == "0" ? rejected == 0 : rejected > 0;
  std::printf("fault %.*s: %d outputs rejected, %s\n", static_cast<int>(mutation.size()),
              mutation.data(), rejected, right ? "as it must be" : "WRONG");
  return right ? 0 : 1;
}

}  // namespace
}  // namespace flashlab::lab

int main(int argc, char** argv) {
  const std::string_view isa = argc == 4 ? argv[3] : "";
  if (isa != "scalar" && isa != "avx2") {
    std::fprintf(stderr, "usage: %s FAULT f|b scalar|avx2\n", argv[0]);
    return 2;
  }
  using flashlab::CpuIsa;
  namespace simd = flashlab::internal::simd;
  simd::kMutation = static_cast<simd::Mutation>(std::atoi(argv[1]));
  return flashlab::lab::run(argv[1], argv[2], isa == "avx2" ? CpuIsa::kAvx2 : CpuIsa::kScalar);
}
