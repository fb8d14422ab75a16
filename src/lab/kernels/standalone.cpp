#include "lab/kernels/standalone.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "cuda/kernels/append/plan.h"
#include "cuda/kernels/ladder/weighted_sum_plan.h"
#include "cuda/kernels/merge/plan.h"
#include "dist/sums/gpu_sum.h"
#include "lab/measure/gpu_roof.h"
#include "lab/measure/gpu_ruler.h"
#include "lab/subjects/collective/collective_gpu.h"

namespace flashlab::lab {
namespace {

constexpr std::array<DType, 3> kStandaloneTypes{DType::kBf16, DType::kFp16, DType::kFp32};

KernelVariant variant_of(const char* name, const char* element, cuda::KernelSpec spec,
                         unsigned threads, std::string what) {
  KernelVariant out;
  out.implementation = name;
  out.pass = spec.entry.starts_with("flash_bwd") ? Pass::kBackward : Pass::kForward;
  out.element = element;
  out.step = spec.entry;
  out.spec = std::move(spec);
  out.configuration = what;
  out.threads = threads;
  out.problem = std::move(what);
  return out;
}

}  // namespace

std::vector<KernelVariant> merge_variants() {
  std::vector<KernelVariant> out;
  for (const DType dtype : kStandaloneTypes) {
    for (const int vector : {4, 1}) {
      out.push_back(variant_of("merge", to_string(dtype), cuda::merge_kernel(dtype, vector),
                               cuda::kMergeThreads,
                               fmt::format("{} {} columns at a time", to_string(dtype), vector)));
      out.back().production = true;
      if (vector == 1) out.back().burden = "rows";
    }
  }
  return out;
}

std::vector<KernelVariant> append_variants() {
  std::vector<KernelVariant> out;
  for (const DType dtype : kStandaloneTypes) {
    for (const DType table : {dtype, DType::kFp32}) {
      if (dtype == DType::kFp32 && !out.empty() && out.back().element == to_string(dtype)) continue;
      out.push_back(variant_of(
          "append", to_string(dtype), cuda::append_kernel(dtype, table), cuda::kAppendThreads,
          fmt::format("{} with rotary tables of {}", to_string(dtype), to_string(table))));
      out.back().production = true;
    }
  }
  return out;
}

std::vector<KernelVariant> instrument_variants(const cuda::DeviceInfo& device) {
  std::vector<KernelVariant> out;
  for (const auto& [form, name] :
       {std::pair{cuda::WeightedSumForm::kArranged, "weighted-sum"},
        std::pair{cuda::WeightedSumForm::kNaive, "weighted-sum-naive"}}) {
    for (const DType dtype : kStandaloneTypes) {
      for (cuda::KernelSpec& spec : cuda::weighted_sum_kernels(form, dtype)) {
        out.push_back(variant_of(name, to_string(dtype), std::move(spec), cuda::kWeightedSumThreads,
                                 fmt::format("rows of {}", to_string(dtype))));
      }
    }
  }
  for (const DType dtype : kStandaloneTypes) {
    if (!dist::gpu_sums(device, dtype)) continue;
    for (const bool wide : {true, false}) {
      out.push_back(variant_of("rank-sum", to_string(dtype), dist::gpu_sum_kernel(3, dtype, wide),
                               dist::kGpuSumThreads,
                               fmt::format("parts of three ranks, {}", wide ? "16 bytes" : "one")));
    }
    for (const char* entry : {"lab_exchange_fill", "lab_exchange_check"}) {
      out.push_back(variant_of("exchange", to_string(dtype), exchange_kernel(dtype, entry),
                               kExchangeThreads, "what ranks exchange"));
    }
  }
  out.push_back(variant_of("rank-sum", to_string(DType::kFp64),
                           dist::gpu_sum_kernel(3, DType::kFp64, false), dist::kGpuSumThreads,
                           "parts of three ranks, one"));
  for (const DType dtype : kStandaloneTypes) {
    for (const Precision precision : {Precision::kIeee, Precision::kTf32}) {
      const bool tf32 = precision == Precision::kTf32;
      if (tf32 && dtype != DType::kFp32) continue;
      const GpuRoof roof = gpu_roof(device, dtype, precision);
      if (roof.name.empty()) continue;
      out.push_back(variant_of("roof", tf32 ? "tf32" : to_string(dtype), roof_kernel(roof),
                               kRoofThreads, roof.name));
    }
  }
  out.push_back(variant_of("read", "", read_kernel(), kRoofThreads, "memory's bytes read"));
  out.push_back(variant_of("clock", "", clock_kernel(), 32, "the clock of a multiprocessor"));
  out.push_back(variant_of("ruler", "", spin_kernel(), 1, "a kernel of known duration"));
  return out;
}

}  // namespace flashlab::lab
