#include "cli/problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "cli/failure.h"
#include "cli/problem_sequences.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

using cases::Case;

// A product of lists grows quickly: beyond this nobody waits for the end.
constexpr std::size_t kMaxCases = 20'000;

constexpr const char* kShapeFlags[] = {"--batch",      "--heads",  "--kv-heads", "--head-dim",
                                       "--head-dim-v", "--seqlen", "--seqlen-k"};
constexpr const char* kFeatureFlags[] = {
    "--causal", "--window",  "--attention-chunk", "--softcap", "--alibi",     "--dropout",
    "--sinks",  "--lengths", "--lengths-k",       "--queries", "--page-size", "--cache-length",
    "--scale"};

// Multiplies the list of cases by the values of one flag.
void multiply(std::vector<Job>& jobs, const std::vector<std::int64_t>& values,
              const std::function<void(Case&, std::int64_t)>& apply) {
  if (values.empty()) return;
  if (jobs.size() * values.size() > kMaxCases) {
    fail_usage(fmt::format("the lists make more than {} cases; name fewer values", kMaxCases));
  }
  std::vector<Job> out;
  out.reserve(jobs.size() * values.size());
  for (const Job& job : jobs) {
    for (const std::int64_t value : values) {
      out.push_back(job);
      apply(out.back().problem, value);
    }
  }
  jobs = std::move(out);
}

std::string divisors(std::int64_t heads) {
  std::vector<std::string> out;
  for (std::int64_t i = 1; i * i <= heads && i < 1'000'000; ++i) {
    if (heads % i == 0) out.push_back(std::to_string(i));
  }
  for (std::size_t i = out.size(); i-- > 0;) {
    const std::int64_t other = heads / std::stoll(out[i]);
    if (std::to_string(other) != out[i] && out.size() < 16) out.push_back(std::to_string(other));
  }
  std::ranges::sort(out, [](const std::string& a, const std::string& b) {
    return std::stoll(a) < std::stoll(b);
  });
  return join_or(out);
}

void check_heads(const Arguments& arguments, const Case& problem) {
  if (problem.heads_q % problem.heads_k == 0) return;
  fail_usage(fmt::format("--kv-heads {} does not divide {} {}; use {}", problem.heads_k,
                         arguments.spelling("--heads"), problem.heads_q,
                         divisors(problem.heads_q)));
}

// Every tensor's bytes, with room for padding and sums over them, must fit in 64 bits.
void check_size(const Case& problem) {
  const std::int64_t keys = std::max(problem.seqlen_k, problem.cache ? problem.cache->capacity : 0);
  const std::int64_t factors[][4] = {
      {problem.batch, problem.seqlen_q, problem.heads_q,
       std::max(problem.head_dim, problem.head_dim_v)},
      {problem.batch, keys, problem.heads_k, std::max(problem.head_dim, problem.head_dim_v)}};
  for (const auto& tensor : factors) {
    std::int64_t product = 64;
    for (const std::int64_t factor : tensor) {
      if (!__builtin_mul_overflow(product, std::max<std::int64_t>(factor, 1), &product)) continue;
      fail_usage(fmt::format(
          "--batch {} --seqlen {} --heads {} --head-dim {} make a tensor whose bytes do not fit in "
          "64 bits; use smaller sizes",
          tensor[0], tensor[1], tensor[2], tensor[3]));
    }
  }
}

// Where queries and keys differ in number; empty: they do not.
std::string unequal_lengths(const Arguments& arguments, const Case& problem) {
  if (arguments.has("--lengths-k")) return "--lengths-k gives keys lengths of their own";
  if (problem.seqlen_q == problem.seqlen_k) return "";
  return fmt::format("--seqlen is {} and --seqlen-k is {}", problem.seqlen_q, problem.seqlen_k);
}

void apply_causal(const Arguments& arguments, Case& problem) {
  const std::optional<std::string> causal = arguments.value("--causal");
  if (!causal) return;
  const std::string unequal = unequal_lengths(arguments, problem);
  if (*causal == "top-left") {
    problem.causal = Causal::kTopLeft;
  } else if (*causal == "bottom-right") {
    problem.causal = Causal::kBottomRight;
  } else if (unequal.empty()) {
    problem.causal = Causal::kTopLeft;
  } else {
    fail_usage(fmt::format(
        "--causal is ambiguous where {}; use --causal=top-left (query i sees keys 0 to i, as "
        "PyTorch) or --causal=bottom-right (the last query sees every key, as flash-attn)",
        unequal));
  }
}

void apply_window(const Arguments& arguments, Case& problem) {
  const std::optional<std::string> text = arguments.value("--window");
  if (!text) return;
  problem.window = cases::parse_window(*text);
  if (!problem.window) {
    fail_usage(
        fmt::format("--window \"{}\" is no window; give LEFT,RIGHT such as 1024,0 or all,128, "
                    "and ,top-left or ,bottom-right behind them where the lengths differ",
                    *text));
  }
  const bool aligned = problem.window->alignment != Alignment::kOfCausal;
  const std::string unequal = unequal_lengths(arguments, problem);
  // A window over a cache is that of decoding: apply_sequences aligns it.
  const bool cached = arguments.has("--cache-length") || problem.cache;
  if (!aligned && !cached && problem.causal == Causal::kNone && !unequal.empty()) {
    fail_usage(
        fmt::format("--window {} is ambiguous where {}; use --window {},top-left (around key i of "
                    "query i) or --window {},bottom-right (the last query is at the last key, as "
                    "flash-attn)",
                    *text, unequal, *text, *text));
  }
}

float parse_real_in(const Arguments& arguments, const char* flag, float low, float high,
                    const char* example) {
  const float value = parse_real(flag, *arguments.value(flag));
  if (value >= low && value <= high) return value;
  fail_usage(fmt::format("{} {} is out of range; give a number such as {}", flag,
                         *arguments.value(flag), example));
}

// What changes scores and probabilities.
void apply_features(const Arguments& arguments, Case& problem) {
  apply_window(arguments, problem);
  if (arguments.has("--attention-chunk")) {
    problem.chunk = whole(arguments, "--attention-chunk", 1, 1, INT64_MAX);
    // The last query is at the last key, as flash-attn has it.
    const bool open = !problem.window && problem.causal == Causal::kNone;
    if (open) problem.window = Window{.alignment = Alignment::kBottomRight};
  }
  if (arguments.has("--sinks")) problem.sinks = true;
  if (arguments.has("--softcap")) {
    problem.softcap = parse_real_in(arguments, "--softcap", 1e-30f, 1e30f, "30 or 50");
  }
  if (arguments.has("--alibi")) problem.alibi = true;
  if (arguments.has("--dropout")) {
    problem.dropout = parse_real_in(arguments, "--dropout", 0, 0.9999f, "0.1, less than 1");
  }
  if (arguments.has("--dropout-seed")) {
    problem.dropout_pattern =
        static_cast<std::uint64_t>(whole(arguments, "--dropout-seed", 1, 0, INT64_MAX));
  }
}

// The passes that --pass or --no-grad ask for; none: what the preset, sweep or command says.
std::vector<Pass> asked_passes(const Arguments& arguments) {
  const std::string pass = arguments.value("--pass").value_or("");
  if (arguments.has("--no-grad")) {
    if (!pass.empty() && pass != "forward") {
      fail_usage(
          fmt::format("--no-grad means --pass forward and contradicts --pass {}; give one", pass));
    }
    return {Pass::kForward};
  }
  if (pass == "forward") return {Pass::kForward};
  if (pass == "backward") return {Pass::kBackward};
  if (pass == "both") return {Pass::kForward, Pass::kBackward};
  return {};
}

std::vector<Job> named_jobs(const Arguments& arguments) {
  std::vector<Job> jobs;
  for (const std::string& name : arguments.list("--preset")) {
    const std::optional<cases::Preset> preset = cases::find_preset(name);
    jobs.push_back({preset->problem, {}});
    if (preset->forward_only) jobs.back().passes = {Pass::kForward};
  }
  if (const std::optional<std::string> name = arguments.value("--sweep")) {
    if (!jobs.empty()) fail_usage("--preset and --sweep contradict each other; give one");
    const std::optional<cases::Sweep> sweep = cases::find_sweep(*name);
    for (Case problem : sweep->cases) {
      problem.name = sweep->name;
      jobs.push_back({std::move(problem), sweep->passes});
    }
  }
  return jobs;
}

void multiply_shapes(const Arguments& arguments, std::vector<Job>& jobs) {
  const auto list = [&](const char* flag) { return whole_list(arguments, flag, {}); };
  multiply(jobs, list("--batch"), [](Case& c, std::int64_t v) { c.batch = v; });
  multiply(jobs, list("--heads"), [](Case& c, std::int64_t v) { c.heads_q = c.heads_k = v; });
  multiply(jobs, list("--kv-heads"), [](Case& c, std::int64_t v) { c.heads_k = v; });
  multiply(jobs, list("--head-dim"),
           [](Case& c, std::int64_t v) { c.head_dim = c.head_dim_v = v; });
  multiply(jobs, list("--head-dim-v"), [](Case& c, std::int64_t v) { c.head_dim_v = v; });
  multiply(jobs, list("--seqlen"), [](Case& c, std::int64_t v) { c.seqlen_q = c.seqlen_k = v; });
  multiply(jobs, list("--seqlen-k"), [](Case& c, std::int64_t v) { c.seqlen_k = v; });
  multiply(jobs, list("--cache-length"),
           [](Case& c, std::int64_t v) { c.seqlen_k = v, c.seqlen_q = 1; });
  multiply(jobs, list("--queries"), [](Case& c, std::int64_t v) { c.seqlen_q = v; });
}

void multiply_dtypes(const std::vector<std::string>& names, std::vector<Job>& jobs) {
  std::vector<std::int64_t> indices(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) indices[i] = static_cast<std::int64_t>(i);
  multiply(jobs, indices,
           [&](Case& c, std::int64_t i) { apply_dtype(c, names[static_cast<std::size_t>(i)]); });
}

// Changing a sweep's lengths or types leaves some of its cases equal: they run once.
void remove_repetitions(std::vector<Job>& jobs) {
  std::set<std::string> seen;
  std::erase_if(jobs, [&](const Job& job) {
    return !seen.insert(fmt::format("{} {} {}", job.problem.describe(), dtype_name(job.problem),
                                    job.problem.scale.value_or(-0.0f)))
                .second;
  });
}

// A preset with another batch is not that preset any more; a sweep's cases differ in their shapes.
void rename(const Arguments& arguments, Case& problem) {
  if (problem.name.empty() || arguments.has("--input")) return;
  if (arguments.has("--sweep")) {
    problem.name = fmt::format("{} {}", problem.name, problem.describe());
    return;
  }
  const bool changed =
      std::ranges::any_of(kShapeFlags, [&](const char* flag) { return arguments.has(flag); }) ||
      std::ranges::any_of(kFeatureFlags, [&](const char* flag) { return arguments.has(flag); });
  if (changed) problem.name += ", changed";
}

void finish(const Arguments& arguments, const ProblemDefaults& defaults, std::vector<Job>& jobs) {
  const std::vector<Pass> passes = asked_passes(arguments);
  const std::optional<std::string> scale = arguments.value("--scale");
  const std::int64_t seed = whole(arguments, "--seed", 1, 0, INT64_MAX);
  for (Job& job : jobs) {
    check_heads(arguments, job.problem);
    check_size(job.problem);
    apply_causal(arguments, job.problem);
    apply_features(arguments, job.problem);
    if (scale) job.problem.scale = parse_real("--scale", *scale);
    job.problem.seed = static_cast<std::uint64_t>(seed);
    if (!passes.empty()) job.passes = passes;
    if (job.passes.empty()) job.passes = defaults.passes;
    apply_sequences(arguments, !passes.empty(), job);
    check_size(job.problem);  // the lengths are others now
    rename(arguments, job.problem);
  }
  remove_repetitions(jobs);
}

}  // namespace

ProblemDefaults bench_defaults() {
  return {};
}

ProblemDefaults compare_defaults(Device device) {
  ProblemDefaults out;
  out.passes = {Pass::kForward, Pass::kBackward};
  if (device.kind == DeviceKind::kCuda) {
    out.problem.name = "GPT decoder";
    out.problem.batch = 4;
    out.problem.seqlen_q = out.problem.seqlen_k = 4096;
    out.problem.heads_q = out.problem.heads_k = 16;
    out.problem.head_dim = out.problem.head_dim_v = 128;
    out.problem.causal = Causal::kTopLeft;
    out.dtypes = {"bf16"};
    return out;
  }
  out.problem.batch = 1;
  out.problem.seqlen_q = out.problem.seqlen_k = 2048;
  out.dtypes = {"fp32", "bf16"};
  return out;
}

// What the values of a file would make of any implementation, said before it runs.
void look_at_values(const std::string& path, const lab::AttentionInputs& inputs, const Job& job) {
  std::vector<lab::ValueRange> ranges;
  for (const lab::FileTensor& tensor : inputs.tensors) {
    ranges.push_back(lab::range_of(tensor));
    if (!ranges.back().nan && !ranges.back().infinite) continue;
    note(fmt::format("--input {}: {} holds {}; rows of the output that it reaches become NaN", path,
                     tensor.name, ranges.back().nan ? "NaN" : "infinities"));
  }
  for (const std::string& name : inputs.unread) {
    note(fmt::format("--input {}: nothing reads its tensor {}", path, name));
  }
  if (job.problem.dtype == DType::kFp64) return;
  const double scale = job.problem.scale ? std::abs(static_cast<double>(*job.problem.scale))
                                         : 1 / std::sqrt(static_cast<double>(job.problem.head_dim));
  const double scores =
      ranges[0].largest * ranges[1].largest * static_cast<double>(job.problem.head_dim) * scale;
  const double dp = ranges.size() > 3 ? ranges[3].largest * ranges[2].largest *
                                            static_cast<double>(job.problem.head_dim_v)
                                      : 0;
  if (std::max(scores, dp) <= std::numeric_limits<float>::max()) return;
  fail_usage(
      fmt::format("--input {}: {} may reach {:.1g}, beyond fp32's largest number; such an "
                  "overflow says nothing about an implementation, so scale the values down",
                  path, scores >= dp ? "scores q k" : "products do v", std::max(scores, dp)));
}

ProblemSet problems_of_input(const Arguments& arguments, const ProblemDefaults& defaults) {
  for (const char* flag : kShapeFlags) {
    if (!arguments.has(flag)) continue;
    fail_usage(fmt::format("{} contradicts --input, whose file says the shapes; give one",
                           arguments.spelling(flag)));
  }
  for (const char* flag : {"--preset", "--sweep"}) {
    if (arguments.has(flag)) fail_usage(fmt::format("{} contradicts --input; give one", flag));
  }
  const std::string path = *arguments.value("--input");
  Result<lab::AttentionInputs> inputs =
      lab::read_attention_inputs(path, {.max_bytes = lab::available_memory_bytes()});
  if (!inputs.ok()) {
    const Status status = inputs.status();
    const bool memory = status.code() == StatusCode::kOutOfMemory;
    throw Failure{memory ? kExitFailure : kExitUsage, "--input " + status.message()};
  }

  ProblemSet out;
  out.inputs = std::make_shared<const lab::AttentionInputs>(std::move(*inputs));
  out.values = lab::CaseValues{out.inputs->q, out.inputs->k, out.inputs->v, out.inputs->d_o};
  const auto& q = out.inputs->q.spec;
  const auto& k = out.inputs->k.spec;
  Job job;
  job.problem.name = path;
  job.problem.batch = q.shape[0];
  job.problem.seqlen_q = q.shape[1];
  job.problem.heads_q = q.shape[2];
  job.problem.head_dim = q.shape[3];
  job.problem.seqlen_k = k.shape[1];
  job.problem.heads_k = k.shape[2];
  job.problem.head_dim_v = out.inputs->v.spec.shape[3];
  job.problem.dtype = q.dtype;
  if (job.problem.batch * job.problem.seqlen_q * job.problem.heads_q == 0 ||
      job.problem.head_dim == 0) {
    fail_usage(
        fmt::format("--input {}: q holds no elements, so there is nothing to measure", path));
  }
  out.jobs = {std::move(job)};
  multiply_dtypes(arguments.list("--dtype"), out.jobs);
  finish(arguments, defaults, out.jobs);
  look_at_values(path, *out.inputs, out.jobs.front());
  for (Job& each : out.jobs) {
    const bool backward = std::ranges::find(each.passes, Pass::kBackward) != each.passes.end();
    if (!backward || out.values->d_o) continue;
    // Named on purpose: the person wants it. By default: what the file allows.
    if (!asked_passes(arguments).empty()) {
      fail_usage(
          fmt::format("--input {} has no tensor \"do\", which the backward pass reads; save "
                      "it beside q, k, v or use --pass forward",
                      path));
    }
    each.passes = {Pass::kForward};
  }
  return out;
}

ProblemSet problems_of(const Arguments& arguments, const ProblemDefaults& defaults) {
  if (arguments.has("--input")) return problems_of_input(arguments, defaults);
  ProblemSet out;
  out.jobs = named_jobs(arguments);
  const bool named = !out.jobs.empty();
  const std::size_t swept = arguments.has("--sweep") ? out.jobs.size() : 0;
  if (!named) out.jobs = {{defaults.problem, {}}};
  multiply_shapes(arguments, out.jobs);
  std::vector<std::string> dtypes = arguments.list("--dtype");
  if (dtypes.empty() && !named) dtypes = defaults.dtypes;
  multiply_dtypes(dtypes, out.jobs);
  finish(arguments, defaults, out.jobs);
  // Lists that multiplied a sweep left its cases no places to be found at.
  if (swept == out.jobs.size()) out.ratios = cases::find_sweep(*arguments.value("--sweep"))->ratios;
  return out;
}

bool gives_problem(const Arguments& arguments) {
  const std::vector<const FlagSpec*> known = flags_of(arguments.command_bit());
  return std::ranges::any_of(known, [&](const FlagSpec* flag) {
    return flag->group == "Problem" && flag->name != "--input" && arguments.has(flag->name);
  });
}

void apply_dtype(cases::Case& problem, std::string_view name) {
  problem.precision = name == "tf32" ? Precision::kTf32 : Precision::kIeee;
  if (name == "tf32") name = "fp32";
  for (DType dtype : {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16}) {
    if (name == to_string(dtype)) problem.dtype = dtype;
  }
}

std::string dtype_name(const cases::Case& problem) {
  return problem.precision == Precision::kTf32 ? "tf32" : to_string(problem.dtype);
}

std::string problem_flags(const cases::Case& problem) {
  std::string out = fmt::format("--dtype {}", dtype_name(problem));
  if (problem.lengths.empty()) out += fmt::format(" --batch {}", problem.batch);
  out += fmt::format(" --heads {}", problem.heads_q);
  if (problem.heads_k != problem.heads_q) out += fmt::format(" --kv-heads {}", problem.heads_k);
  out += sequence_flags(problem);
  out += fmt::format(" --head-dim {}", problem.head_dim);
  if (problem.head_dim_v != problem.head_dim) {
    out += fmt::format(" --head-dim-v {}", problem.head_dim_v);
  }
  if (problem.causal == Causal::kTopLeft) out += " --causal=top-left";
  if (problem.causal == Causal::kBottomRight) out += " --causal=bottom-right";
  if (problem.window) out += " --window " + cases::to_string(*problem.window);
  if (problem.chunk) out += fmt::format(" --attention-chunk {}", *problem.chunk);
  if (problem.softcap) out += fmt::format(" --softcap {}", *problem.softcap);
  if (problem.alibi) out += " --alibi";
  if (problem.dropout > 0) out += fmt::format(" --dropout {}", problem.dropout);
  if (problem.sinks) out += " --sinks";
  if (problem.scale) out += fmt::format(" --scale {}", *problem.scale);
  return out;
}

}  // namespace flashlab::cli
