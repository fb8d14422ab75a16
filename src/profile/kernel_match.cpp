#include "profile/kernel_match.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace flashlab::profile {
namespace {

using cuda::Activity;
using runtime::Step;
using Kind = Activity::Kind;

bool is_product(const Step& step) {
  return std::holds_alternative<runtime::ProductWork>(step.work);
}

bool fits(const Activity& activity, const Step& step) {
  if (const auto* kernel = std::get_if<runtime::KernelWork>(&step.work)) {
    return activity.kind == Kind::kKernel && activity.name == kernel->spec.entry;
  }
  if (std::holds_alternative<runtime::MemsetWork>(step.work)) return activity.kind == Kind::kMemset;
  if (std::holds_alternative<runtime::CopyWork>(step.work)) return activity.kind == Kind::kCopy;
  return false;
}

bool adds_up_parts(const Activity& activity) {
  return activity.kind == Kind::kKernel &&
         (activity.name.find("splitK") != std::string::npos ||
          activity.name.find("splitk") != std::string::npos) &&
         activity.name.find("educe") != std::string::npos;
}

struct Range {
  std::size_t first, end;
};

// Activities of several products in a row.
bool share_out(const std::vector<Activity>& all, Range activities, Range products,
               std::vector<std::size_t>& out) {
  std::size_t next = products.first;
  for (std::size_t i = activities.first; i < activities.end; ++i) {
    if (adds_up_parts(all[i])) {
      if (next == products.first) return false;
      out.push_back(next - 1);
    } else if (next == products.end) {
      return false;
    } else {
      out.push_back(next);
      if (all[i].kind == Kind::kKernel) ++next;
    }
  }
  return next == products.end;
}

}  // namespace

std::optional<std::vector<std::size_t>> match_steps(const std::vector<Activity>& activities,
                                                    const std::vector<Step>& steps) {
  std::vector<std::size_t> out;
  for (std::size_t step = 0; step < steps.size();) {
    if (!is_product(steps[step])) {
      if (out.size() == activities.size()) return std::nullopt;
      if (!fits(activities[out.size()], steps[step])) return std::nullopt;
      out.push_back(step++);
      continue;
    }
    Range products = {step, step};
    while (products.end < steps.size() && is_product(steps[products.end])) ++products.end;
    const bool last = products.end == steps.size();
    Range ran = {out.size(), out.size()};
    // A memset that begins the step after them may be one of theirs, too: each has a kernel first.
    std::size_t kernels = 0;
    while (ran.end < activities.size() && (last || kernels < products.end - products.first ||
                                           !fits(activities[ran.end], steps[products.end]))) {
      const Activity& each = activities[ran.end++];
      kernels += each.kind == Kind::kKernel && !adds_up_parts(each) ? 1 : 0;
    }
    if (!share_out(activities, ran, products, out)) return std::nullopt;
    step = products.end;
  }
  if (out.size() != activities.size()) return std::nullopt;
  return out;
}

std::string readable_kernel(const std::string& name) {
  constexpr std::size_t kMost = 96;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  std::string out = status == 0 && plain != nullptr ? plain.get() : name;
  if (status == 0) {
    // "void cublasLt::splitKreduce_kernel<32, 16>(...)": neither the result nor parameters.
    if (out.starts_with("void ")) out.erase(0, 5);
    if (out.ends_with(")")) {
      int depth = 0;
      std::size_t at = out.size();
      do {
        --at;
        depth += out[at] == ')' ? 1 : out[at] == '(' ? -1 : 0;
      } while (at > 0 && depth > 0);
      if (at > 0) out.resize(at);
    }
  }
  if (out.size() > kMost) out = out.substr(0, kMost - 3) + "...";
  return out;
}

}  // namespace flashlab::profile
