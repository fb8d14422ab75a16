#include "lab/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "reference/naive_rounded.h"
#include "reference/oracle.h"

namespace flashlab::lab {
namespace {

namespace ref = flashlab::reference;
using cases::Case;

constexpr double kFullLimit = 4294967296.0;  // multiply-adds from which on rows are sampled
constexpr std::int64_t kSampleRows = 64, kSampleHeads = 8;

const char* name_of(Pass pass) {
  return pass == Pass::kForward ? "forward" : "backward";
}

bool wants(const CheckOptions& options, Pass pass) {
  return std::find(options.passes.begin(), options.passes.end(), pass) != options.passes.end();
}

// Both answers to one pass.
struct ForwardTruth {
  ref::ForwardRows exact, naive;
};
struct BackwardTruth {
  ref::BackwardRows exact, naive;
};

ref::Sample sample_of(const Case& c, const ref::Sizes& sizes) {
  if (ref::multiply_adds(sizes, c.causal) < kFullLimit) return ref::Sample::everything(sizes);
  return ref::Sample::seeded(sizes, kSampleRows, kSampleHeads, c.seed);
}

Result<ForwardTruth> forward_truth(const ForwardTensors& t, const Options& options,
                                   const ref::Sample& sample) {
  auto exact = ref::forward(t, options, sample);
  if (!exact.ok()) return exact.status();
  auto naive = ref::naive_yardstick(t, options, sample, *exact);
  if (!naive.ok()) return naive.status();
  return ForwardTruth{std::move(*exact), std::move(*naive)};
}

Result<BackwardTruth> backward_truth(const BackwardTensors& t, const Options& options,
                                     const ref::Sample& sample) {
  BackwardTruth out;
  const auto both = [&](const ref::Sample& part, ref::Statistics statistics, BackwardTruth* to) {
    auto exact = ref::backward(t, options, part, statistics);
    if (!exact.ok()) return exact.status();
    auto naive =
        ref::naive_yardstick(t, options, part, *exact, statistics == ref::Statistics::kGiven);
    if (!naive.ok()) return naive.status();
    *to = {std::move(*exact), std::move(*naive)};
    return Status();
  };
  if (sample.all) {
    if (Status s = both(sample, ref::Statistics::kRecomputed, &out); !s.ok()) return s;
    return out;
  }
  // A few keys' gradients need the LSE and delta of every query: those come from o and lse.
  ref::Sample queries = sample, keys = sample;
  queries.keys.clear();
  keys.queries.clear();
  BackwardTruth of_keys;
  if (Status s = both(queries, ref::Statistics::kRecomputed, &out); !s.ok()) return s;
  if (Status s = both(keys, ref::Statistics::kGiven, &of_keys); !s.ok()) return s;
  const auto take_keys = [](ref::BackwardRows& to, ref::BackwardRows& from) {
    to.keys = std::move(from.keys);
    to.dk = std::move(from.dk);
    to.dv = std::move(from.dv);
    to.dk_dont_care = std::move(from.dk_dont_care);
    to.dv_dont_care = std::move(from.dv_dont_care);
  };
  take_keys(out.exact, of_keys.exact);
  take_keys(out.naive, of_keys.naive);
  return out;
}

std::vector<ref::Verdict> judge(const ForwardTensors& t, const ForwardTruth& truth) {
  std::vector<ref::Verdict> out;
  out.push_back(ref::compare({"o", t.o, truth.exact.rows, truth.exact.o, truth.naive.o,
                              &truth.exact.dont_care, t.q.spec.dtype}));
  if (t.lse) {
    out.push_back(
        ref::compare_lse(*t.lse, truth.exact.rows, truth.exact.lse, truth.exact.magnitude));
  }
  return out;
}

std::vector<ref::Verdict> judge(const BackwardTensors& t, const BackwardTruth& truth) {
  const DType type = t.q.spec.dtype;
  const ref::BackwardRows &exact = truth.exact, &naive = truth.naive;
  return {ref::compare({"dq", t.dq, exact.queries, exact.dq, naive.dq, &exact.dq_dont_care, type}),
          ref::compare({"dk", t.dk, exact.keys, exact.dk, naive.dk, &exact.dk_dont_care, type}),
          ref::compare({"dv", t.dv, exact.keys, exact.dv, naive.dv, &exact.dv_dont_care, type})};
}

// values [rows, width] into [batch, seqlen, heads, width], or [rows] into [batch, heads, seqlen].
void store_rows(const Tensor& to, const std::vector<ref::Row>& rows,
                const std::vector<double>& values) {
  const TensorSpec& spec = to.spec;
  const std::int64_t width = spec.rank == 4 ? spec.shape[3] : 1;
  std::size_t next = 0;
  for (const ref::Row& row : rows) {
    const std::int64_t second = spec.rank == 4 ? row.position : row.head;
    const std::int64_t third = spec.rank == 4 ? row.head : row.position;
    std::int64_t base = 0;
    if (spec.shape[0] > 1) base += row.batch * spec.strides[0];
    if (spec.shape[1] > 1) base += second * spec.strides[1];
    if (spec.shape[2] > 1) base += third * spec.strides[2];
    for (std::int64_t d = 0; d < width; ++d) {
      ref::store(to.data, spec.dtype, base + d, values[next++]);
    }
  }
}

// Adds what the gradient tensors hold to both answers: what an accumulating backward must give.
void add_initial(const Tensor& gradient, const std::vector<ref::Row>& rows,
                 std::vector<double>& exact, std::vector<double>& naive) {
  const TensorSpec& spec = gradient.spec;
  const auto width = static_cast<std::size_t>(spec.shape[3]);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::int64_t base = 0;
    if (spec.shape[0] > 1) base += rows[r].batch * spec.strides[0];
    if (spec.shape[1] > 1) base += rows[r].position * spec.strides[1];
    if (spec.shape[2] > 1) base += rows[r].head * spec.strides[2];
    for (std::size_t d = 0; d < width; ++d) {
      const double before =
          ref::load(gradient.data, spec.dtype, base + static_cast<std::int64_t>(d));
      exact[r * width + d] += before;
      naive[r * width + d] = ref::round_to(spec.dtype, naive[r * width + d] + before);
    }
  }
}

// A workspace filled with one byte, with guards at both ends. What a kernel reads before writing it
// differs between two calls with different bytes.
class PoisonedWorkspace {
 public:
  ~PoisonedWorkspace() {
    if (memory_ != nullptr) default_cpu_allocator().deallocate(memory_, total_, {});
  }

  Status allocate(std::size_t bytes) {
    if (bytes > std::numeric_limits<std::size_t>::max() / 2) {
      return Status::out_of_memory({"workspace", fmt::format("{} bytes", bytes),
                                    "a size this machine can hold", "use a smaller problem"});
    }
    auto memory =
        default_cpu_allocator().allocate(bytes + 2 * kGuard, kGuard, {}, {"workspace", "check"});
    if (!memory.ok()) return memory.status();
    memory_ = static_cast<std::uint8_t*>(*memory);
    bytes_ = bytes;
    total_ = bytes + 2 * kGuard;
    return {};
  }

  Workspace poisoned(int byte) const {
    std::memset(memory_, kPattern, kGuard);
    std::memset(memory_ + kGuard, byte, bytes_);
    std::memset(memory_ + kGuard + bytes_, kPattern, kGuard);
    return {memory_ + kGuard, bytes_};
  }

  bool intact() const {
    const auto whole = [](const std::uint8_t* from) {
      return std::all_of(from, from + kGuard, [](std::uint8_t b) { return b == kPattern; });
    };
    return whole(memory_) && whole(memory_ + kGuard + bytes_);
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::uint8_t kPattern = 0x5A;
  std::uint8_t* memory_ = nullptr;
  std::size_t bytes_ = 0, total_ = 0;
};

RunStatus run_status(const Status& status) {
  if (status.code() == StatusCode::kUnsupported) return RunStatus::kUnsupported;
  if (status.code() == StatusCode::kOutOfMemory) return RunStatus::kOutOfMemory;
  return RunStatus::kError;
}

}  // namespace

struct CaseTruth::Impl {
  Impl(CaseData memory) : data(std::move(memory)) {}
  CaseData data;
  ref::Sample sample;
  std::optional<ForwardTruth> forward;
  std::optional<BackwardTruth> backward;
};

CaseTruth::CaseTruth(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CaseTruth::CaseTruth(CaseTruth&&) noexcept = default;
CaseTruth& CaseTruth::operator=(CaseTruth&&) noexcept = default;
CaseTruth::~CaseTruth() = default;

Result<CaseTruth> CaseTruth::create(const Case& problem, const CheckOptions& options) {
  CaseDataOptions data_options;
  data_options.backward = wants(options, Pass::kBackward);
  data_options.memory_limit_bytes = options.memory_limit_bytes;
  data_options.trap_reads_past_end = options.trap_reads_past_end;
  auto data = CaseData::create(problem, data_options);
  if (!data.ok()) return data.status();
  try {
    auto impl = std::make_unique<Impl>(std::move(*data));
    const ForwardTensors t = impl->data.forward_tensors();
    const ref::Sizes sizes = ref::sizes_of(t.q, t.k, t.v);
    impl->sample = sample_of(problem, sizes);
    auto forward = forward_truth(t, problem.options(), impl->sample);
    if (!forward.ok()) return forward.status();
    impl->forward = std::move(*forward);
    // A sample's keys need an implementation's o and lse: that truth is found when they exist.
    if (data_options.backward && impl->sample.all) {
      const BackwardTensors b = impl->data.backward_tensors();
      // The naive backward starts from the naive forward, as an implementation's from its own.
      store_rows(t.o, impl->forward->naive.rows, impl->forward->naive.o);
      store_rows(*t.lse, impl->forward->naive.rows, impl->forward->naive.lse);
      auto backward = backward_truth(b, problem.options(), impl->sample);
      impl->data.reset_outputs(Pass::kForward);
      if (!backward.ok()) return backward.status();
      impl->backward = std::move(*backward);
      if (problem.gradient_mode == GradientMode::kAccumulate) {
        BackwardTruth& truth = *impl->backward;
        add_initial(b.dq, truth.exact.queries, truth.exact.dq, truth.naive.dq);
        add_initial(b.dk, truth.exact.keys, truth.exact.dk, truth.naive.dk);
        add_initial(b.dv, truth.exact.keys, truth.exact.dv, truth.naive.dv);
      }
    }
    return CaseTruth(std::move(impl));
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory(
        {"check", "std::bad_alloc", "memory for the oracle's results", "use a smaller case"});
  }
}

namespace {

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
      if (!run_pass(pass)) break;
    }
    report_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  void item(Pass pass, const char* what, bool passed, std::string message,
            std::optional<ref::Verdict> verdict = {}) {
    report_.items.push_back({fmt::format("{} {}", name_of(pass), what), passed, std::move(message),
                             std::move(verdict)});
  }

  bool refuse(Pass pass, const Status& status) {
    report_.status = run_status(status);
    report_.message = fmt::format("{}: {}", name_of(pass), status.message());
    return false;
  }

  // False when nothing further can be done with this case.
  bool run_pass(Pass pass) {
    auto made = plan(context_, problem_of(report_.problem, pass, report_.implementation));
    if (!made.ok()) return refuse(pass, made.status());
    // Planning from layouts and calling with addresses must agree: plan again from the tensors.
    auto planned = plan(context_, described(pass));
    if (!planned.ok()) return refuse(pass, planned.status());
    PoisonedWorkspace workspace;
    if (Status s = workspace.allocate(planned->workspace_bytes()); !s.ok()) return refuse(pass, s);
    if (Status s = call(context_, pass, *planned, workspace.poisoned(0xFF)); !s.ok()) {
      return refuse(pass, s);
    }
    if (!wants(options_, pass)) return true;
    judge_outputs(pass);
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

  Status call(const Context& context, Pass pass, const Plan& plan, Workspace workspace) const {
    truth_.data.reset_outputs(pass);
    if (pass == Pass::kForward) {
      return forward(context, {}, plan, truth_.data.forward_tensors(), workspace);
    }
    return backward(context, {}, plan, truth_.data.backward_tensors(), workspace);
  }

  void judge_outputs(Pass pass) {
    std::vector<ref::Verdict> verdicts;
    if (pass == Pass::kForward) {
      verdicts = judge(truth_.data.forward_tensors(), *truth_.forward);
    } else {
      const BackwardTensors tensors = truth_.data.backward_tensors();
      if (truth_.backward) {
        verdicts = judge(tensors, *truth_.backward);
      } else {
        auto sampled = backward_truth(tensors, report_.problem.options(), truth_.sample);
        if (!sampled.ok()) return item(pass, "oracle", false, sampled.status().message());
        verdicts = judge(tensors, *sampled);
      }
    }
    for (ref::Verdict& verdict : verdicts) {
      const std::string name = verdict.tensor, message = verdict.message();
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

  bool repeat(Pass pass, const Plan& planned, const PoisonedWorkspace& workspace) {
    const std::vector<std::uint8_t> first = truth_.data.output_bits(pass);
    if (Status s = call(context_, pass, planned, workspace.poisoned(0x3C)); !s.ok()) {
      return refuse(pass, s);
    }
    compare_bits(pass, "repeat", first, "a second call on the same context");
    if (!report_.problem.deterministic) return true;
    for (int threads : {1, 2, 3, 7}) {
      if (threads == context_.threads()) continue;
      auto other = Context::create({context_.device(), threads, context_.cpu_isa(), nullptr});
      if (!other.ok()) return refuse(pass, other.status());
      auto again = plan(*other, described(pass));
      if (!again.ok()) return refuse(pass, again.status());
      PoisonedWorkspace its_workspace;
      if (Status s = its_workspace.allocate(again->workspace_bytes()); !s.ok()) {
        return refuse(pass, s);
      }
      if (Status s = call(*other, pass, *again, its_workspace.poisoned(0xFF)); !s.ok()) {
        return refuse(pass, s);
      }
      compare_bits(pass, "threads", first, fmt::format("a call with {} threads", threads));
    }
    return true;
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
         std::all_of(items.begin(), items.end(), [](const CheckItem& i) { return i.passed; });
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

bool CheckSummary::ok() const {
  const bool ruler_ok =
      std::all_of(ruler.begin(), ruler.end(), [](const RulerReading& r) { return r.ok; });
  return failed == 0 && !cancelled && ruler_ok;
}

CheckReport check_case(const Context& context, const CaseTruth& truth,
                       std::string_view implementation, const CheckOptions& options) {
  return Checker(context, truth, implementation, options).run();
}

CheckReport check_case(const Context& context, const Case& problem, std::string_view implementation,
                       const CheckOptions& options) {
  auto truth = CaseTruth::create(problem, options);
  if (truth.ok()) return check_case(context, *truth, implementation, options);
  CheckReport report;
  report.problem = problem;
  report.implementation = implementation;
  report.status = run_status(truth.status());
  report.message = truth.status().message();
  return report;
}

CheckSummary check_cases(const Context& context, const CheckRun& run) {
  CheckSummary summary;
  if (run.ruler) summary.ruler = check_ruler();
  const std::size_t per_case = run.implementations.size();
  const auto planned = static_cast<int>(run.cases.size() * per_case);
  std::vector<std::optional<CheckReport>> slots(run.cases.size() * per_case);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  int done = 0;
  const auto cancelled = [&] { return run.cancel != nullptr && run.cancel->load(); };

  const auto finish = [&](std::size_t slot, CheckReport report) {
    std::lock_guard lock(mutex);
    slots[slot] = std::move(report);
    if (run.progress) run.progress(++done, planned, *slots[slot]);
  };
  const auto work = [&] {
    for (std::size_t n = next++; n < run.cases.size() && !cancelled(); n = next++) {
      const auto truth = CaseTruth::create(run.cases[n], run.options);
      for (std::size_t m = 0; m < per_case && !cancelled(); ++m) {
        CheckReport report;
        if (truth.ok()) {
          report = check_case(context, *truth, run.implementations[m], run.options);
        } else {
          report.problem = run.cases[n];
          report.implementation = run.implementations[m];
          report.status = run_status(truth.status());
          report.message = truth.status().message();
        }
        finish(n * per_case + m, std::move(report));
      }
    }
  };
  const int jobs = run.jobs > 0 ? run.jobs : context.threads();
  std::vector<std::thread> threads;
  for (int n = 1; n < jobs; ++n) {
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // fewer at a time
    }
  }
  work();
  for (std::thread& thread : threads) thread.join();

  for (auto& slot : slots) {
    if (!slot) continue;
    summary.passed += slot->passed();
    summary.failed += slot->failed();
    summary.unsupported += slot->status == RunStatus::kUnsupported;
    summary.reports.push_back(std::move(*slot));
  }
  summary.cancelled = cancelled();
  return summary;
}

Result<ErrorVsFp64> error_vs_fp64(const CaseData& data, Pass pass) {
  const Case& c = data.problem();
  if (pass == Pass::kBackward && c.gradient_mode == GradientMode::kAccumulate) {
    return Status::invalid({"gradient_mode", "accumulate", "overwrite",
                            "the error of an accumulating call needs the values before it"});
  }
  try {
    const ForwardTensors t = data.forward_tensors();
    const ref::Sample sample = sample_of(c, ref::sizes_of(t.q, t.k, t.v));
    std::vector<ref::Verdict> verdicts;
    if (pass == Pass::kForward) {
      auto truth = forward_truth(t, c.options(), sample);
      if (!truth.ok()) return truth.status();
      verdicts = judge(t, *truth);
    } else {
      const BackwardTensors b = data.backward_tensors();
      auto truth = backward_truth(b, c.options(), sample);
      if (!truth.ok()) return truth.status();
      verdicts = judge(b, *truth);
    }
    ErrorVsFp64 out;
    out.sample = sample.description;
    out.accepted = true;
    double worst_excess = -std::numeric_limits<double>::infinity();
    for (const ref::Verdict& verdict : verdicts) {
      out.accepted = out.accepted && verdict.passed;
      if (verdict.tensor != "lse") {
        out.error = std::max(out.error, verdict.max_error);
        out.naive_error = std::max(out.naive_error, verdict.naive_error);
      }
      const double excess = verdict.passed ? verdict.max_error - verdict.bound
                                           : std::numeric_limits<double>::infinity();
      if (out.worst.empty() || excess > worst_excess) {
        worst_excess = excess;
        out.worst = verdict.message();
      }
    }
    return out;
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory({"error against fp64", "std::bad_alloc",
                                  "memory for fp64 copies of one head", "use a smaller case"});
  }
}

}  // namespace flashlab::lab
