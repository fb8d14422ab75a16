#pragma once

// Results made up for the tests of what people see: every figure is arithmetic on the shape.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::lab::report {

inline cases::Case sample_case(std::int64_t length = 2048, DType dtype = DType::kFp32) {
  cases::Case problem;
  problem.batch = 1;
  problem.seqlen_q = problem.seqlen_k = length;
  problem.dtype = dtype;
  return problem;
}

/// A run of `problem` at `gflops` with `extra` bytes beside inputs and outputs.
inline Measurement sample_result(std::string implementation, std::string pass,
                                 const cases::Case& problem, double gflops, std::int64_t extra) {
  Measurement r;
  const Pass which = pass == "backward" ? Pass::kBackward : Pass::kForward;
  r.implementation = std::move(implementation);
  r.device = "cpu";
  r.pass = std::move(pass);
  r.labels = labels_of(problem);
  r.samples = 15;
  const double ms = problem.flops(which) / gflops / 1e6;
  r[kMedianMs] = ms;
  r[kMinMs] = ms * 0.97;
  r[kMeanMs] = ms * 1.01;
  r[kMaxMs] = ms * 1.2;
  r[kStdMs] = ms * 0.02;
  r[kTflops] = gflops / 1000;
  r[kRoofShare] = gflops / 236;
  r[kPeakBytes] = problem.ideal_bytes(which) + static_cast<double>(extra);
  r[kError] = 5e-7;
  r[kNaiveError] = 4e-7;
  r.error_sample = "all";
  r.plan = "tiles: query tile 48 x key block 256";
  return r;
}

inline Measurement failed_result(std::string implementation, std::string pass,
                                 const cases::Case& problem, RunStatus status,
                                 std::string message) {
  Measurement r;
  r.implementation = std::move(implementation);
  r.device = "cpu";
  r.pass = std::move(pass);
  r.labels = labels_of(problem);
  r.status = status;
  r.message = std::move(message);
  return r;
}

inline Environment sample_environment() {
  Environment e;
  e.flashlab_version = "0.1.0";
  e.commit = "1f2e3d4";
  e.command = "flashlab compare --device cpu --pass both";
  e.date_utc = "2026-11-21T03:40:00Z";
  e.cpu_model = "Example CPU";
  e.cpu_isa = "avx512";
  e.cpu_threads_online = 4;
  e.threads_used = 2;
  e.roof_fp32_gflops = 236;
  e.warnings = {{"another program uses the CPU", "stop it"}};
  return e;
}

/// naive (with parts), cpu and fa2-plain (no backward) on one problem.
inline ResultFile sample_comparison() {
  ResultFile file;
  file.environment = sample_environment();
  const cases::Case problem = sample_case();
  file.results = {sample_result("naive", "forward", problem, 20, 272'000'000),
                  sample_result("naive", "backward", problem, 16, 544'000'000),
                  sample_result("cpu", "forward", problem, 200, 100'000),
                  sample_result("cpu", "backward", problem, 160, 200'000),
                  sample_result("fa2-plain", "forward", problem, 50, 0),
                  failed_result("fa2-plain", "backward", problem, RunStatus::kUnsupported,
                                "required backward; supported forward")};
  file.results[0][kError] = 4e-7;
  file.results[1][kError] = 4e-7;
  file.results[0].parts = {{"scores", 20}, {"softmax", 15}, {"values", 10}};
  return file;
}

/// cpu against naive over lengths; naive is faster below 1024 and out of memory above 4096.
inline ResultFile sample_sweep() {
  ResultFile file;
  file.environment = sample_environment();
  for (const std::int64_t d : {32, 64}) {
    for (std::int64_t s = 256; s <= 16384; s *= 2) {
      cases::Case problem = sample_case(s);
      problem.heads_q = problem.heads_k = 4;
      problem.head_dim = problem.head_dim_v = d;
      problem.causal = Causal::kTopLeft;
      problem.name = "sweep " + problem.describe();
      for (const char* pass : {"forward", "backward"}) {
        file.results.push_back(sample_result("cpu", pass, problem, 100, 10'000));
        file.results.push_back(
            s > 4096
                ? failed_result("naive", pass, problem, RunStatus::kOutOfMemory, "scores too large")
                : sample_result("naive", pass, problem, s < 1024 ? 150 : 20, 8 * 4 * s * s));
      }
    }
  }
  return file;
}

/// Everything a file may hold and nobody wants: markup, control characters, invalid UTF-8, very
/// long names, NaN, infinities, zeros, negative and huge figures, no figures at all.
inline ResultFile hostile_results() {
  ResultFile file;
  file.environment = sample_environment();
  file.environment.command = "flashlab bench --json '<&>\"]]>' `x` \x1b[31m";
  file.environment.cpu_model = "<script>alert(1)</script> & \xff\xfe \xe4\xb8\xad";
  file.environment.warnings = {{"</section><b>", "]]> & \"quotes\""}};
  const std::string names[] = {"a<b>&\"c\"'d'",
                               std::string(300, 'x'),
                               "tab\tline\nend\x1b[2J",
                               "",
                               "\xe4\xb8\xad\xe6\x96\x87 e\xcc\x81",
                               "100% $ # _ {} ~ ^ \\ |"};
  const double figures[] = {
      std::numeric_limits<double>::quiet_NaN(), HUGE_VAL, -HUGE_VAL, 0, -1, 1e300, 5e-324};
  for (const std::int64_t s : {0L, 1L, 7L, 2048L}) {
    std::size_t at = 0;
    for (const std::string& name : names) {
      const double figure = figures[at++ % std::size(figures)];
      Measurement r =
          sample_result(name, at % 2 ? "forward" : "both <passes>", sample_case(s), 1, 1);
      r.device = name;
      r[kMedianMs] = r[kTflops] = r[kRoofShare] = r[kError] = r[kNaiveError] = figure;
      r[kPeakBytes] = at % 3 == 0 ? 1e300 : -5;
      r.plan = name;
      r.parts = {{name, figure}};
      file.results.push_back(r);
      file.results.push_back(
          failed_result(name, "backward", sample_case(s), RunStatus::kError, name));
    }
  }
  Measurement nothing;
  file.results.push_back(nothing);
  cases::Case endless;
  endless.batch = endless.heads_q = endless.seqlen_q = endless.seqlen_k =
      std::numeric_limits<std::int64_t>::max();
  endless.causal = Causal::kBottomRight;
  nothing.labels = labels_of(endless);
  nothing.pass = "backward";
  file.results.push_back(nothing);
  return file;
}

}  // namespace flashlab::lab::report
