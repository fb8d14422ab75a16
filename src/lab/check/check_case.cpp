#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <mutex>

#include "lab/check/check.h"
#include "lab/check/check_sequences.h"
#include "lab/check/check_truth.h"

namespace flashlab::lab {
namespace {

namespace ref = flashlab::reference;
using cases::Case;

bool wants(const CheckOptions& options, Pass pass) {
  return std::ranges::find(options.passes, pass) != options.passes.end();
}

// On a GPU one call at a time, with all that touches the device for it: after an illegal address
// every call of the process fails, and the first to see it must be the one that did it.
std::unique_lock<std::mutex> device_turn(const Context& context) {
  static std::mutex mutex;
  if (context.device().kind == DeviceKind::kCpu) return {};
  return std::unique_lock(mutex);
}

// A workspace filled with one byte, with guards at both ends. What a kernel reads before writing it
// differs between two calls with different bytes.
class PoisonedWorkspace {
 public:
  explicit PoisonedWorkspace(DeviceMemory& memory) : memory_(memory) {}
  PoisonedWorkspace(const PoisonedWorkspace&) = delete;
  PoisonedWorkspace& operator=(const PoisonedWorkspace&) = delete;
  ~PoisonedWorkspace() { memory_.release(data_); }

  Status allocate(std::size_t bytes) {
    if (bytes > std::numeric_limits<std::size_t>::max() / 2) {
      return Status::out_of_memory({"workspace", fmt::format("{} bytes", bytes),
                                    "a size this machine can hold", "use a smaller problem"});
    }
    auto memory = memory_.allocate(bytes + 2 * kGuard);
    if (!memory.ok()) return memory.status();
    data_ = static_cast<std::uint8_t*>(*memory);
    bytes_ = bytes;
    return {};
  }

  Status poison(int byte) {
    if (Status s = memory_.fill(data_, kPattern, kGuard); !s.ok()) return s;
    if (Status s = memory_.fill(data_ + kGuard, byte, bytes_); !s.ok()) return s;
    return memory_.fill(data_ + kGuard + bytes_, kPattern, kGuard);
  }
  Workspace view() const { return {data_ + kGuard, bytes_}; }

  // Whether the guards are whole: looked at after each call.
  Status look_at_guards() {
    std::array<std::uint8_t, 2 * kGuard> guards;
    if (Status s = memory_.download(guards.data(), data_, kGuard); !s.ok()) return s;
    if (Status s = memory_.download(guards.data() + kGuard, data_ + kGuard + bytes_, kGuard);
        !s.ok()) {
      return s;
    }
    intact_ = intact_ && std::ranges::all_of(guards, [](std::uint8_t b) { return b == kPattern; });
    return {};
  }
  bool intact() const { return intact_; }
  bool ready() const { return data_ != nullptr; }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::uint8_t kPattern = 0x5A;
  DeviceMemory& memory_;
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool intact_ = true;
};

// One implementation on one case: collects items.
class Checker {
 public:
  Checker(const Context& context, const CaseTruth& truth, std::string_view implementation,
          const CheckOptions& options)
      : context_(context), truth_(truth.impl()), options_(options) {
    report_.problem = truth_.data.problem();
    report_.implementation = implementation;
    report_.sample = truth_.sample.description;
  }

  CheckReport run() {
    const auto begin = std::chrono::steady_clock::now();
    for (Pass pass : {Pass::kForward, Pass::kBackward}) {
      // Backward reads what forward wrote, so forward runs (but is not judged) in any case.
      if (!wants(options_, pass) && !wants(options_, Pass::kBackward)) continue;
      if (pass == Pass::kBackward && !report_.problem.has_backward()) continue;
      if (!run_pass(pass)) break;
    }
    report_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  void item(Pass pass, const char* what, bool passed, std::string message,
            std::optional<ref::Verdict> verdict = {}) {
    report_.items.push_back({fmt::format("{} {}", to_string(pass), what), passed,
                             std::move(message), std::move(verdict)});
  }

  bool refuse(Pass pass, const Status& status) {
    // A rung without a backward pass is judged by its forward.
    const bool forward_only = pass == Pass::kBackward && !report_.items.empty() &&
                              status.code() == StatusCode::kUnsupported;
    if (!forward_only) report_.status = run_status(status);
    report_.message = fmt::format("{}: {}", to_string(pass), status.message());
    return false;
  }

  // False when nothing further can be done with this case.
  bool run_pass(Pass pass) {
    auto made = plan(context_,
                     problem_of(report_.problem, pass, report_.implementation, context_.device()));
    if (!made.ok()) return refuse(pass, made.status());
    // Planning from layouts and calling with addresses must agree: plan again from the tensors.
    auto planned = plan(context_, described(pass));
    if (!planned.ok()) return refuse(pass, planned.status());
    if (Status s = prepare(context_, *planned); !s.ok()) return refuse(pass, s);
    PoisonedWorkspace workspace(truth_.data.memory());
    if (Status s = call(context_, pass, *planned, workspace, 0xFF); !s.ok()) {
      return refuse(pass, s);
    }
    if (!wants(options_, pass)) return true;
    judge_outputs(pass, "");
    judge_guards(pass, workspace);
    if (options_.repeat && !repeat(pass, *planned, workspace)) return false;
    return true;
  }

  Problem described(Pass pass) const {
    Options options = report_.problem.options();
    options.implementation = report_.implementation;
    return pass == Pass::kForward ? describe(truth_.data.forward_tensors(), options)
                                  : describe(truth_.data.backward_tensors(), options);
  }

  // A call with a poisoned workspace; its outputs lie in this machine's memory afterwards.
  Status call(const Context& context, Pass pass, const Plan& plan, PoisonedWorkspace& workspace,
              int poison) {
    const auto turn = device_turn(context);
    CaseData& data = truth_.data;
    const Stream stream = data.memory().stream();
    if (Status lost = data.memory().health(); !lost.ok()) {
      report_.device_lost_before = true;
      return lost;
    }
    Status s = workspace.ready() ? Status() : workspace.allocate(plan.workspace_bytes());
    if (s.ok()) s = data.reset_outputs(pass);
    if (s.ok()) s = workspace.poison(poison);
    if (!s.ok()) return s;
    s = pass == Pass::kForward
            ? forward(context, stream, plan, data.forward_tensors(), workspace.view())
            : backward(context, stream, plan, data.backward_tensors(), workspace.view());
    if (s.ok()) s = data.fetch_outputs(pass);
    return s.ok() ? workspace.look_at_guards() : s;
  }

  // `prefix` names the call: "" or "repeat ".
  void judge_outputs(Pass pass, const char* prefix) {
    std::vector<ref::Verdict> verdicts;
    if (pass == Pass::kForward) {
      verdicts = judge(truth_.data.host_forward_tensors(), *truth_.forward);
    } else {
      const BackwardTensors tensors = truth_.data.host_backward_tensors();
      if (truth_.backward) {
        verdicts = judge(tensors, *truth_.backward);
      } else {
        const Case& problem = report_.problem;
        auto sampled = problem.ragged() ? backward_truth_by_sequences(problem, tensors)
                                        : backward_truth(tensors, problem.options(), truth_.sample);
        if (!sampled.ok()) return item(pass, "oracle", false, sampled.status().message());
        verdicts = judge(tensors, *sampled);
      }
    }
    for (ref::Verdict& verdict : verdicts) {
      const std::string name = prefix + verdict.tensor, message = verdict.message();
      const bool passed = verdict.passed;
      item(pass, name.c_str(), passed, message, std::move(verdict));
    }
  }

  void judge_guards(Pass pass, const PoisonedWorkspace& workspace) {
    std::string message;
    if (const auto violation = truth_.data.find_violation()) {
      message =
          fmt::format("{}: byte {} from its first element, outside every element, was written",
                      violation->tensor, violation->offset_bytes);
    } else if (!workspace.intact()) {
      message = "a byte outside the workspace was written";
    }
    item(pass, "guards", message.empty(), message);
  }

  // Bits are promised on a CPU, by every forward pass, and where the call asks for them. Other
  // backward passes add in the order that a GPU's blocks happen to finish in: their second call is
  // judged like the first.
  bool bits_promised(Pass pass) const {
    return context_.device().kind == DeviceKind::kCpu || pass == Pass::kForward ||
           report_.problem.deterministic;
  }

  bool repeat(Pass pass, const Plan& planned, PoisonedWorkspace& workspace) {
    const bool bits = bits_promised(pass);
    const std::vector<std::uint8_t> first = truth_.data.output_bits(pass);
    const int calls = bits ? std::max(options_.bitwise_calls, 1) : 1;
    for (int n = 0; n < calls; ++n) {
      if (Status s = call(context_, pass, planned, workspace, n % 2 == 0 ? 0x3C : 0xFF); !s.ok()) {
        return refuse(pass, s);
      }
      if (!bits) {
        judge_outputs(pass, "repeat ");
      } else if (!same_bits(pass, first) || n + 1 == calls) {
        compare_bits(pass, "repeat", first, fmt::format("call {} on the same context", n + 2));
        break;
      }
    }
    if (!report_.problem.deterministic || context_.device().kind != DeviceKind::kCpu) return true;
    return repeat_with_other_threads(pass, first);
  }

  bool repeat_with_other_threads(Pass pass, const std::vector<std::uint8_t>& first) {
    for (int threads : {1, 2, 3, 7}) {
      if (threads == context_.threads()) continue;
      auto other = Context::create({context_.device(), threads, context_.cpu_isa(), nullptr});
      if (!other.ok()) return refuse(pass, other.status());
      auto again = plan(*other, described(pass));
      if (!again.ok()) return refuse(pass, again.status());
      PoisonedWorkspace its_workspace(truth_.data.memory());
      if (Status s = call(*other, pass, *again, its_workspace, 0xFF); !s.ok()) {
        return refuse(pass, s);
      }
      compare_bits(pass, "threads", first, fmt::format("a call with {} threads", threads));
    }
    return true;
  }

  bool same_bits(Pass pass, const std::vector<std::uint8_t>& first) const {
    return truth_.data.output_bits(pass) == first;
  }

  void compare_bits(Pass pass, const char* what, const std::vector<std::uint8_t>& first,
                    const std::string& of) {
    const std::vector<std::uint8_t> second = truth_.data.output_bits(pass);
    const auto differs = std::mismatch(first.begin(), first.end(), second.begin()).first;
    const bool same = differs == first.end();
    item(pass, what, same,
         same ? std::string()
              : fmt::format("{} differs from the first call at byte {} of the outputs", of,
                            differs - first.begin()));
  }

  const Context& context_;
  CaseTruth::Impl& truth_;
  const CheckOptions& options_;
  CheckReport report_;
};

}  // namespace

bool CheckReport::passed() const {
  return status == RunStatus::kOk &&
         std::ranges::all_of(items, [](const CheckItem& i) { return i.passed; });
}

std::string CheckReport::failure() const {
  const std::string who =
      fmt::format("{} ({}) {}", problem.name, problem.describe(), implementation);
  if (status != RunStatus::kOk) {
    return fmt::format("{}: {}: {}", who, to_string(status), message);
  }
  for (const CheckItem& i : items) {
    if (!i.passed) return fmt::format("{}: {}: {}", who, i.what, i.message);
  }
  return {};
}

CheckReport check_case(const Context& context, const CaseTruth& truth,
                       std::string_view implementation, const CheckOptions& options) {
  return Checker(context, truth, implementation, options).run();
}

CheckReport check_case(const Context& context, const Case& problem, std::string_view implementation,
                       const CheckOptions& options) {
  auto memory = device_memory(context);
  CheckOptions on_device = options;
  if (memory.ok()) on_device.memory = *memory;
  auto truth =
      memory.ok() ? CaseTruth::create(problem, on_device) : Result<CaseTruth>(memory.status());
  if (truth.ok()) return check_case(context, *truth, implementation, options);
  CheckReport report;
  report.problem = problem;
  report.implementation = implementation;
  report.status = run_status(truth.status());
  report.message = truth.status().message();
  return report;
}

}  // namespace flashlab::lab
