#include "lab/machine/python_answers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace flashlab::lab {
namespace {

constexpr std::size_t kNotesKept = 2;

}  // namespace

Result<std::unique_ptr<PythonAnswers>> PythonAnswers::start(
    const PeerPython& options, std::string_view text, const std::vector<std::string>& arguments) {
  std::unique_ptr<PythonAnswers> out(new PythonAnswers(options));
  std::vector<std::string> command = {options.python, "-c", std::string(text)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  auto child = ChildProcess::start(command);
  if (!child.ok()) {
    return Status(StatusCode::kIoError, {fmt::format("{} cannot be started: {}", options.python,
                                                     child.status().detail().got),
                                         "", "", "name a Python 3 with --python"});
  }
  out->child_ = std::move(*child);
  Result<std::string> ready = out->answer();
  if (!ready.ok()) return ready.status();
  const auto json = base::read_json<nlohmann::json>(*ready);
  if (!json.is_object() || !json.contains("ready") || !json["ready"].is_string()) {
    return Status::unsupported(
        {options.python, ready->substr(0, 200), fmt::format("a Python with {}", options.what), ""});
  }
  out->words_ = json["ready"].get<std::string>();
  out->ready_ = std::move(*ready);
  return out;
}

Result<std::string> PythonAnswers::ask(std::string_view request) {
  child_->send(request);
  return answer();
}

Result<std::string> PythonAnswers::answer() {
  const auto begin = std::chrono::steady_clock::now();
  while (lines_.empty()) {
    ChildProcess::Lines lines = child_->read(options_.look_ms);
    lines_ = std::move(lines.results);
    for (std::string& note : lines.notes) {
      if (note.find_first_not_of(" \t\r") != std::string::npos) notes_.push_back(std::move(note));
    }
    if (notes_.size() > kNotesKept) notes_.erase(notes_.begin(), notes_.end() - kNotesKept);
    if (!lines_.empty()) break;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    const bool cancelled = options_.cancel != nullptr && options_.cancel->load();
    const bool silent = waited.count() > options_.silence_s;
    if (!child_->ended() && !cancelled && !silent) continue;
    const std::string why = cancelled ? "was interrupted"
                            : silent  ? fmt::format("gave no answer for {:g} s ({})",
                                                    options_.silence_s, options_.silence_flag)
                                      : "ended by " + child_->how_it_ended();
    child_->kill();
    std::string remedy(options_.remedy);
    if (remedy.empty()) {
      remedy = fmt::format("{} -m pip install torch, or name another Python with --python",
                           options_.python);
    }
    return Status::unsupported({fmt::format("{} {}", options_.python, why),
                                fmt::format("{}", fmt::join(notes_, " | ")),
                                std::string(options_.what), std::move(remedy)});
  }
  std::string out = std::move(lines_.front());
  lines_.erase(lines_.begin());
  return out;
}

}  // namespace flashlab::lab
