#include "cuda/launch/defaults.h"

#include <array>
#include <string_view>

#include "cuda/launch/implementations.h"

namespace flashlab::cuda {
namespace {

// Fastest first. fa2-mma takes fp16 forward there; bf16, fp32 and backward come to the next ones;
// fa2 leaves the deterministic backward to fa2-deterministic. No rung takes masks or head dims
// beyond 128. Times: the table in README.md, docs/learn/fa2.md.
constexpr std::array<std::string_view, 5> kBeforeSm80{"fa2-mma", "fa2-shuffle", "fa2",
                                                      "fa2-deterministic", "naive"};

}  // namespace

std::vector<const internal::Implementation*> default_implementations(const DeviceInfo& gpu) {
  const std::vector<const internal::Implementation*> all = implementations();
  if (gpu.major * 10 + gpu.minor >= all.front()->oldest_architecture) return {all.front()};
  std::vector<const internal::Implementation*> out;
  for (const std::string_view name : kBeforeSm80) {
    for (const internal::Implementation* each : all) {
      if (each->name == name) out.push_back(each);
    }
  }
  return out;
}

}  // namespace flashlab::cuda
