#include "lab/subjects/collective/peer_collectives.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace flashlab::lab {
namespace {

using Json = nlohmann::json;

constexpr int kReadMs = 5;
constexpr double kMostSeconds = 5;  // of a row, as of ours

}  // namespace

Result<std::unique_ptr<PeerCollectives>> PeerCollectives::start_torch(const std::string& python,
                                                                      const std::string& device,
                                                                      double silence_s) {
  auto started =
      PythonAnswers::start({.python = python, .silence_s = silence_s, .look_ms = kReadMs},
                           torch_collectives_text(), {"--requests", "--device", device});
  if (!started.ok()) return started.status();
  std::unique_ptr<PeerCollectives> out(new PeerCollectives);
  out->python_ = std::move(*started);
  out->words_ = out->python_->words();
  const Json json = base::read_json<Json>(out->python_->ready());
  if (!json.contains("backend")) {
    return Status::unsupported(
        {python, out->python_->ready().substr(0, 200), "a Python with PyTorch", ""});
  }
  out->name_ = "torch." + json["backend"].get<std::string>();
  return out;
}

Result<std::unique_ptr<PeerCollectives>> PeerCollectives::start_mpi(const std::string& python,
                                                                    int rank, int ranks,
                                                                    double silence_s) {
  std::unique_ptr<PeerCollectives> out(new PeerCollectives);
  out->name_ = "mpi.own";
  if (rank != 0) return out;
  auto started = PythonAnswers::start({.python = python,
                                       .silence_s = silence_s,
                                       .look_ms = kReadMs,
                                       .what = "OpenMPI's mpirun and library",
                                       .remedy = "install OpenMPI (Debian: openmpi-bin)"},
                                      mpi_collectives_text(),
                                      {"--requests", "--ranks", std::to_string(ranks)});
  if (!started.ok()) return started.status();
  out->python_ = std::move(*started);
  out->words_ = out->python_->words();
  return out;
}

Result<std::vector<double>> PeerCollectives::time(const CollectiveProblem& problem, bool graph,
                                                  const MeasureOptions& options) {
  if (python_ == nullptr) return std::vector<double>();
  const Json request = {{"operation", runtime::to_string(problem.kind)},
                        {"bytes", problem.moved_bytes()},
                        {"dtype", to_string(problem.dtype)},
                        {"graph", graph},
                        {"warmup", options.warmup},
                        {"repeats", options.repeats},
                        {"seconds", kMostSeconds},
                        {"sample_ms", options.min_sample_ms}};
  const Result<std::string> line = python_->ask(base::json_text(request));
  if (!line.ok()) return line.status();
  const Json json = base::read_json<Json>(*line);
  if (json.is_object() && json.contains("error")) {
    return Status::unsupported({name_, json["error"].get<std::string>(), "", ""});
  }
  if (!json.is_object() || !json.contains("ms") || !json["ms"].is_array()) {
    return Status(StatusCode::kInternal,
                  {"Python answered what nobody expects: " + line->substr(0, 200), "", "", ""});
  }
  if (!json.value("right", false)) {
    return Status(StatusCode::kInternal, {name_ + " gave a wrong result", "", "", ""});
  }
  return json["ms"].get<std::vector<double>>();
}

}  // namespace flashlab::lab
