// `tokenize`: texts as a file of tokens, which train and evaluate map into memory.

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "base/text.h"
#include "cli/command.h"
#include "cli/failure.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "train/data/encode_text.h"
#include "train/data/files.h"
#include "train/data/text.h"

namespace flashlab::cli {
namespace {

namespace fs = std::filesystem;

// --tokenizer, learned from the texts where it is to be.
train::Tokenizer tokenizer_for(const Arguments& arguments, const std::vector<std::string>& files) {
  train::TextOptions options;
  options.tokenizer = arguments.value("--tokenizer").value_or("");
  if (options.tokenizer.empty()) {
    fail_usage("tokenize needs --tokenizer: a tokenizer.json, or bpe, character or byte");
  }
  if (const Status s = train::check_tokenizer(options.tokenizer); !s.ok()) {
    fail_usage("--" + s.message());
  }
  if (arguments.has("--vocabulary") && options.tokenizer != "bpe") {
    fail_usage("--vocabulary has no effect without --tokenizer bpe, or leave it out");
  }
  options.files = files;
  options.field = arguments.value("--text-field").value_or("");
  options.vocabulary = whole(arguments, "--vocabulary", 0, 0, kMaxSize);
  options.stop = &interrupted();
  Result<train::Tokenizer> out = train::tokenizer_of_text(options);
  if (!out.ok()) fail_usage("--" + out.status().message());
  return std::move(*out);
}

// Names that follow from a text's own may be that of a text: data.json beside --tokenizer bpe.
void keep_texts(const std::vector<std::string>& files, const fs::path& written) {
  for (const std::string& file : files) {
    std::error_code ignored;
    if (!fs::equivalent(file, written, ignored)) continue;
    fail_usage(fmt::format("--text {} would be written over by {}; give --output another name",
                           file, written.string()));
  }
}

}  // namespace

int run_tokenize(const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  const std::vector<std::string> files = arguments.list("--text");
  if (files.empty()) fail_usage("tokenize needs --text FILE[,FILE]");
  const fs::path output =
      arguments.value("--output").value_or(fs::path(files.front()).replace_extension(".bin"));
  const std::string given = arguments.value("--tokenizer").value_or("");
  const fs::path json =
      given.ends_with(".json") ? fs::path(given) : fs::path(output).replace_extension(".json");
  keep_texts(files, output);
  keep_texts(files, json);
  const train::Tokenizer tokenizer = tokenizer_for(arguments, files);
  ProgressLine bar;
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto outcome = tokenize_files(
      tokenizer,
      {.files = files,
       .field = arguments.value("--text-field").value_or(""),
       .threads = static_cast<int>(whole(arguments, "--threads", 0, 1, 4096)),
       .progress =
           [&](std::int64_t bytes, std::int64_t of) {
             bar.show(static_cast<double>(bytes), static_cast<double>(of),
                      fmt::format("{:.1f} of {:.1f} MB  {:.1f} MB/s",
                                  static_cast<double>(bytes) * 1e-6, static_cast<double>(of) * 1e-6,
                                  static_cast<double>(bytes) * 1e-6 / seconds()));
           },
       .stop = &interrupted()},
      output);
  bar.clear();
  if (!outcome.ok() && interrupted()) {
    throw Failure{kExitInterrupted, "interrupted before the text was all tokens; nothing is kept"};
  }
  if (!outcome.ok() && outcome.status().code() == StatusCode::kInvalidArgument) {
    fail_usage("--text " + outcome.status().message());
  }
  if (!outcome.ok()) fail(outcome.status());
  if (!given.ends_with(".json")) {
    if (const Status s = train::write_file(json, tokenizer.to_json()); !s.ok()) fail(s);
  }
  const double megabytes = static_cast<double>(outcome->bytes) * 1e-6;
  print_line(
      fmt::format("{} · {} · {} tokens of {:.1f} MB{} in {:.1f} s, {:.1f} MB/s", output.string(),
                  tokenizer.describe(), outcome->tokens, megabytes,
                  outcome->documents > 0 ? fmt::format(", {} documents", outcome->documents) : "",
                  seconds(), megabytes / seconds()));
  print_line(fmt::format("next     flashlab train --tokens {} --tokenizer {}", output.string(),
                         json.string()));
  return kExitOk;
}

}  // namespace flashlab::cli
