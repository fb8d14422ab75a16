// `export`: weights for other programs.

#include "train/run/export_model.h"

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/terminal.h"

namespace flashlab::cli {

int run_export(const Arguments& arguments) {
  const auto path = arguments.value("--checkpoint"), output = arguments.value("--output");
  if (!path || !output) fail_usage("export needs --checkpoint PATH and --output PATH");
  const std::string form = arguments.value("--to").value_or("hf");
  train::ExportOptions options;
  options.form = form == "hf"      ? train::ExportForm::kHuggingFace
                 : form == "llm.c" ? train::ExportForm::kLlmc
                                   : train::ExportForm::kSafetensors;
  const train::ModelFiles files = model_files("--checkpoint", *path);
  if (const auto name = arguments.value("--dtype")) {
    for (const train::Element element : {train::Element::kFp64, train::Element::kFp32,
                                         train::Element::kFp16, train::Element::kBf16}) {
      if (*name == to_string(element)) options.element = element;
    }
  }
  const train::Tokenizer tokenizer = tokenizer_of(arguments, files);
  const Status written = train::export_model(files, tokenizer, options, *output);
  if (!written.ok()) fail(written);
  const train::Element element = options.element.value_or(element_of(files));
  print_line(fmt::format("wrote    {} · {:.2f} M parameters in {}", *output,
                         static_cast<double>(parameter_count(files.model)) * 1e-6,
                         to_string(element)));
  if (form == "hf" && tokenizer.kind() == train::Tokenizer::Kind::kNumber) {
    print_line("without  tokenizer.json: the checkpoint has none");
  }
  return kExitOk;
}

}  // namespace flashlab::cli
