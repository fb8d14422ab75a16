// --ncu, --nsys: the same command once more, short, under Nsight Compute or Nsight Systems.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <set>

#include "cli/profile_output.h"
#include "cli/terminal.h"
#include "lab/lab.h"
#include "profile/ledger.h"
#include "profile/nsight.h"
#include "train/data/files.h"

namespace flashlab::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTopKernels = 5;
constexpr double kMostLaunches = 200;
constexpr double kLongestSeconds = 120;

bool is_step(const std::vector<std::string>& words) {
  return std::ranges::find(words, "step") != words.end();
}

// This process' own words, without those that the second run has of its own.
std::vector<std::string> program_words(const fs::path& output) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  static const std::set<std::string> kTakeValue = {"--steps", "--warmup", "--output", "--json",
                                                   "--repeats"};
  std::vector<std::string> out = {fs::read_symlink("/proc/self/exe").string()};
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (name == "--ncu" || name == "--nsys" || name == "--quick") continue;
    if (kTakeValue.contains(name)) {
      if (name == words[i]) ++i;
      continue;
    }
    out.push_back(words[i]);
  }
  const bool step = is_step(out);
  for (const char* word :
       {"--quick", "--warmup", "1", step ? "--steps" : "--repeats", step ? "1" : "2", "--output"}) {
    out.emplace_back(word);
  }
  out.push_back(output.string());
  return out;
}

// Names that are functions as they stand: those of C++ templates would need escapes. Of a step as
// many launches as it has, after the warm-up's; calls of attention follow one another pass by pass,
// each as often as the roof beside it takes, and are counted one and all.
profile::NcuLaunches longest_kernels(const profile::Recording& recording, bool step) {
  profile::NcuLaunches out;
  double calls = 0;
  for (const profile::LedgerRow& row : profile::make_ledger(recording, {})) {
    const bool plain =
        row.key.find_first_not_of(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string::npos;
    if (plain && row.key != "product" && row.key != "memset" && row.key != "copy") {
      out.kernels.push_back(row.key);
      calls += row.calls;
    }
    if (out.kernels.size() == kTopKernels) break;
  }
  if (step) out.count = static_cast<int>(std::clamp(std::round(calls), 1.0, kMostLaunches));
  return out;
}

// Empty when it ended well, else the last thing that it said.
std::string run_child(const std::vector<std::string>& command) {
  auto child = lab::ChildProcess::start(command);
  if (!child.ok()) return child.status().message();
  const auto begin = std::chrono::steady_clock::now();
  std::string last;
  while (!(*child)->ended()) {
    const auto lines = (*child)->read(200);
    for (const auto* all : {&lines.results, &lines.notes}) {
      for (const std::string& line : *all) {
        if (line.find("ERROR") != std::string::npos || last.empty()) last = line;
      }
    }
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (interrupted().load() || passed.count() > kLongestSeconds) {
      (*child)->kill();
      return interrupted().load() ? "interrupted"
                                  : fmt::format("it took more than {} s", kLongestSeconds);
    }
  }
  const std::string how = (*child)->how_it_ended();
  return how == "exit code 0" ? "" : fmt::format("{}: {}", how, last);
}

void add_counters(const fs::path& folder, profile::Profile& p) {
  const auto say = [&](const std::string& reason) {
    p.missing.push_back({"counters by ncu", reason});
  };
  const std::string ncu = profile::find_ncu();
  if (ncu.empty()) {
    return say("ncu is not installed: it comes with NVIDIA's toolkit; FLASHLAB_NCU names a file");
  }
  const fs::path second = folder / "under-ncu";
  const std::vector<std::string> words = program_words(second);
  const profile::NcuLaunches launches = longest_kernels(p.recording, is_step(words));
  if (launches.kernels.empty()) return say("no kernel of this run has a plain name");
  const std::string log = (folder / "ncu.csv").string(), report = (folder / "ncu").string();
  std::string why;
  // A metric that this GPU or this ncu does not know can end the run: then fewer are asked for.
  using Detail = profile::NcuDetail;
  for (const auto& [detail, as_report] :
       {std::pair{Detail::kAll, true}, std::pair{Detail::kAll, false},
        std::pair{Detail::kCommon, false}, std::pair{Detail::kFew, false}}) {
    why = run_child(
        profile::ncu_command(ncu, {as_report ? report : log, as_report}, launches, words, detail));
    if (as_report && fs::exists(report + ".ncu-rep")) {
      why = run_child(profile::ncu_table_command(ncu, report, log));
    }
    if (const auto text = train::read_file(log); text.ok()) {
      p.counters = profile::parse_ncu(*text);
    }
    const bool forbidden = why.find("ERR_NVGPUCTRPERM") != std::string::npos;
    if (!p.counters.empty() || forbidden || interrupted().load()) break;
  }
  std::error_code ignored;
  fs::remove_all(second, ignored);
  if (p.counters.empty()) say(fmt::format("{} gave none ({})", ncu, why.empty() ? "no row" : why));
}

void add_timeline(const fs::path& folder, profile::Profile& p) {
  const auto say = [&](const std::string& reason) {
    p.missing.push_back({"report of nsys", reason});
  };
  const std::string nsys = profile::find_nsys();
  if (nsys.empty()) {
    return say(
        "nsys is not installed: https://developer.nvidia.com/nsight-systems; FLASHLAB_NSYS names "
        "a file");
  }
  const fs::path report = folder / "nsys", second = folder / "under-nsys";
  std::string why = run_child(profile::nsys_command(nsys, report.string(), program_words(second)));
  std::error_code ignored;
  fs::remove_all(second, ignored);
  if (!fs::exists(report.string() + ".nsys-rep", ignored)) {
    return say(fmt::format("{} made none ({})", nsys, why.empty() ? "no file" : why));
  }
  why = run_child(profile::nsys_sums_command(nsys, report.string()));
  if (const auto text = train::read_file(report.string() + "_cuda_gpu_kern_sum.csv"); text.ok()) {
    p.timeline = profile::parse_nsys(*text);
  }
  if (p.timeline.empty()) {
    p.missing.push_back({"sums of nsys", why.empty() ? "nsys stats saw no kernel" : why});
  }
}

}  // namespace

void add_nsight(const Arguments& arguments, const fs::path& folder, profile::Profile& p) {
  if (arguments.has("--ncu")) add_counters(folder, p);
  if (arguments.has("--nsys") && !interrupted().load()) add_timeline(folder, p);
}

}  // namespace flashlab::cli
