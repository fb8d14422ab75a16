#include "lab/python/python_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/text.h"
#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::lab {
namespace {

constexpr int kWaitMs = 50;
// After Ctrl-C a sample may still be under way; a compilation is not waited for.
constexpr double kGraceMs = 10'000;
constexpr std::size_t kLinesKept = 3;
constexpr std::size_t kNoteLength = 300;

// Says what cannot be imported before anything is. The current folder is not searched: a clone of
// FlashLab that lies in it would be taken for the package.
constexpr const char* kStart = R"(
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import importlib.util, json, runpy
def there(name):
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        return False
    return found is not None and found.origin is not None
missing = [name for name in ("flashlab", "torch") if not there(name)]
if not missing and not there("flashlab.peers"):
    missing = ["flashlab.peers"]
if missing:
    print(json.dumps({"event": "missing", "modules": missing}))
else:
    runpy.run_module("flashlab.peers", run_name="__main__")
)";

double now_ms() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(since).count();
}

/// How to get what `modules` names.
std::string installing(const std::string& python, const std::vector<std::string>& modules) {
  std::string out;
  const auto lacks = [&](const char* name) {
    return std::ranges::any_of(modules,
                               [&](const std::string& each) { return each.starts_with(name); });
  };
  if (lacks("flashlab")) out += fmt::format("{} -m pip install . (in FlashLab's folder)", python);
  if (lacks("torch")) {
    out += fmt::format("{}{} -m pip install torch", out.empty() ? "" : "; ", python);
  }
  return out + "; or name another Python with --python";
}

}  // namespace

bool PythonWorker::cancelled() const {
  return options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
}

Status PythonWorker::failure(const std::string& what) const {
  std::string text = fmt::format("{} {} while {}", options_.python, what, doing_);
  if (!said_.empty()) {
    text += "; it said: " + base::join({said_.begin(), said_.end()}, " | ");
  }
  return {StatusCode::kInternal, {std::move(text), "", "", ""}};
}

void PythonWorker::read_notes(const std::vector<std::string>& notes, const Stage& stage) {
  for (const std::string& note : notes) {
    if (const auto progress = parse_progress(note)) {
      doing_ = progress->words;
      heard_ms_ = now_ms();
      if (stage) stage(progress->done, progress->total, progress->words);
    } else if (note.find_first_not_of(" \t\r") != std::string::npos) {
      said_.push_back(note.substr(0, kNoteLength));
      if (said_.size() > kLinesKept) said_.pop_front();
    }
  }
}

Result<PythonMessage> PythonWorker::next(const PythonRequest* asked, const Stage& stage) {
  for (;;) {
    if (!lines_.empty()) {
      const std::string line = std::exchange(lines_.front(), {});
      lines_.pop_front();
      auto message = parse_message(line, asked, to_string(options_.device));
      if (message.ok()) return message;
      child_->kill();
      return failure("printed what is not by the protocol, " + message.status().message() + ",");
    }
    if (cancelled() && !interrupt_sent_) {
      interrupt_sent_ = true;
      child_->interrupt();
      heard_ms_ = now_ms();
    }
    const double silence_ms = now_ms() - heard_ms_;
    if (cancelled() && (asked == nullptr || silence_ms > kGraceMs)) {
      child_->kill();
      return failure("was interrupted");
    }
    if (silence_ms > options_.silence_s * 1e3) {
      child_->kill();
      return failure(
          fmt::format("gave no sign of life for {:g} s (--python-timeout)", options_.silence_s));
    }
    ChildProcess::Lines lines = child_->read(kWaitMs);
    read_notes(lines.notes, stage);
    if (!lines.results.empty()) heard_ms_ = now_ms();
    for (std::string& line : lines.results) lines_.push_back(std::move(line));
    if (lines_.empty() && child_->ended()) {
      return failure(fmt::format("ended by {}", child_->how_it_ended()));
    }
  }
}

Status PythonWorker::answer_of(const PythonMessage& message) {
  const auto unsupported = [&](std::string text, std::string remedy) {
    return Status::unsupported({std::move(text), "", "", std::move(remedy)});
  };
  switch (message.kind) {
    case PythonMessage::Kind::kReady:
      info_ = message.info;
      if (info_.protocol == kPythonProtocol) return {};
      return unsupported(fmt::format("flashlab {} in {} speaks another version of the protocol",
                                     info_.flashlab, options_.python),
                         installing(options_.python, {"flashlab"}));
    case PythonMessage::Kind::kMissing:
      return unsupported(
          fmt::format("{} has no {}", options_.python, base::join(message.modules, " and no ")),
          installing(options_.python, message.modules));
    case PythonMessage::Kind::kUnusable:
      return unsupported(fmt::format("{}: {}", options_.python, message.text),
                         "or name another Python with --python");
    default:
      return failure("said nothing of itself");
  }
}

Status PythonWorker::wait_until_ready() {
  std::vector<std::string> command = {options_.python, "-c", kStart, to_string(options_.device),
                                      std::to_string(options_.threads)};
  if (!options_.cpu_isa.empty()) command.push_back(options_.cpu_isa);
  auto child = ChildProcess::start(command);
  if (!child.ok()) {
    return {StatusCode::kIoError,
            {fmt::format("{} cannot be started: {}", options_.python, child.status().detail().got),
             "", "", "name a Python 3 with --python"}};
  }
  child_ = std::move(*child);
  heard_ms_ = now_ms();
  const auto message = next(nullptr, {});
  return message.ok() ? answer_of(*message) : message.status();
}

Result<std::unique_ptr<PythonWorker>> PythonWorker::start(const PythonOptions& options) {
  std::unique_ptr<PythonWorker> worker(new PythonWorker(options));
  if (Status status = worker->wait_until_ready(); !status.ok()) return status;
  return worker;
}

PythonRun PythonWorker::run(const cases::Case& problem, std::span<const Pass> passes,
                            std::span<const std::string> implementations,
                            const MeasureOptions& measure, const Stage& stage) {
  const PythonRequest request{problem, passes, implementations, measure};
  PythonRun out;
  doing_ = "starting " + problem.describe();
  heard_ms_ = now_ms();
  child_->send(to_json_line(request));  // whether it was heard is seen by the answer
  for (;;) {
    auto message = next(&request, stage);
    if (!message.ok()) {
      out.status = message.status();
      break;
    }
    if (message->kind == PythonMessage::Kind::kResult) {
      out.results.push_back(std::move(message->result));
      continue;
    }
    if (message->kind != PythonMessage::Kind::kEnd) {
      child_->kill();
      out.status = failure("began again");
    } else if (message->lost) {
      out.status = failure("lost the device");
    }
    break;
  }
  if (out.status.ok() || cancelled()) return out;
  for (const Pass pass : passes) {
    for (const std::string& name : implementations) {
      const bool given = std::ranges::any_of(out.results, [&](const auto& row) {
        return row.implementation == name && row.pass == to_string(pass);
      });
      if (given) continue;
      Measurement row = attention_measurement(name, options_.device, pass, problem);
      row.status = RunStatus::kError;
      row.message = out.status.message();
      out.results.push_back(std::move(row));
    }
  }
  return out;
}

}  // namespace flashlab::lab
