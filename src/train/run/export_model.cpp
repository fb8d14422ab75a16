#include "train/run/export_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "train/cpu/narrow.h"
#include "train/data/files.h"
#include "train/step/step.h"
#include "train/weights/llmc.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

// An element of a store (fp64 or fp32) into one of a file.
void convert(Element from, const std::byte* number, Element to, char* out) {
  double wide = 0;
  float narrow = 0;
  if (from == Element::kFp64) {
    std::memcpy(&wide, number, sizeof wide);
    narrow = static_cast<float>(wide);
  } else {
    std::memcpy(&narrow, number, sizeof narrow);
    wide = static_cast<double>(narrow);
  }
  if (to == Element::kFp64) {
    std::memcpy(out, &wide, sizeof wide);
  } else if (to == Element::kFp32) {
    std::memcpy(out, &narrow, sizeof narrow);
  } else {
    std::uint16_t half = 0;
    cpu::narrow(to, &narrow, &half, 1);
    std::memcpy(out, &half, sizeof half);
  }
}

// Where row `row` of a head stands in a file that keeps halves: the reverse of take_weights.
std::int64_t row_there(std::int64_t row, std::int64_t head) {
  if (head == 0) return row;
  const std::int64_t inside = row % head, half = head / 2;
  return row - inside + inside / 2 + inside % 2 * half;
}

StoredTensor stored_part(const ParameterPart& part, const std::byte* arena, Element from,
                         const FilePart& file, Element to) {
  StoredTensor out = {to, part.shape, {}};
  const std::int64_t rows = part.shape[0];
  const std::int64_t columns = part.shape.size() > 1 ? part.shape[1] : 1;
  const std::int64_t bytes = size_of(to);
  if (file.transposed) std::reverse(out.shape.begin(), out.shape.end());
  out.bytes.resize(static_cast<std::size_t>(rows * columns * bytes));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t there = row_there(r, file.halves_of);
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t at = file.transposed ? c * rows + there : there * columns + c;
      convert(from, arena + (r * columns + c) * size_of(from), to, out.bytes.data() + at * bytes);
    }
  }
  return out;
}

Status refuse(const char* argument, std::string got, std::string expected, std::string remedy) {
  return Status::invalid({argument, std::move(got), std::move(expected), std::move(remedy)});
}

Status check(const ModelFiles& files, ExportForm form, Element element) {
  if (form != ExportForm::kLlmc) return {};
  const ModelConfig& model = files.model;
  if (model.family != Family::kGpt2 || model.hidden != 4 * model.width) {
    return refuse("to", "llm.c for another model than GPT-2", "GPT-2, four times as wide inside",
                  "--to hf");
  }
  if (element != Element::kFp32 && element != Element::kBf16) {
    return refuse("dtype", to_string(element), "fp32 or bf16: llm.c's file has no other",
                  "--dtype bf16");
  }
  return {};
}

Status make_empty_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    errno = error.value();
    return io_error(folder, "created");
  }
  if (fs::is_empty(folder, error)) return {};
  return refuse("output", folder.string() + ", which holds something", "a new or empty folder",
                "another folder");
}

}  // namespace

Element element_of(const ModelFiles& files) {
  for (const auto& [name, tensor] : files.tensors) {
    if (tensor.element && tensor.shape.size() == 2) return *tensor.element;
  }
  return Element::kFp32;
}

Status export_model(const ModelFiles& files, const Tokenizer& tokenizer,
                    const ExportOptions& options, const fs::path& path) {
  const Element element = options.element.value_or(element_of(files));
  if (Status s = check(files, options.form, element); !s.ok()) return s;
  StepOptions step;
  step.mode = StepMode::kDecode;
  step.precision = element_of(files) == Element::kFp64 ? Precision::kFp64 : Precision::kFp32;
  const Result<StepPlan> plan = build_step(files.model, step);
  if (!plan.ok()) return plan.status();
  const Result<ParameterStore> store = ParameterStore::create(*plan);
  if (!store.ok()) return store.status();
  if (Status s = take_weights(files, *store); !s.ok()) return s;
  const bool folder = options.form == ExportForm::kHuggingFace;
  const Layout layout = folder                              ? Layout::kHuggingFace
                        : options.form == ExportForm::kLlmc ? Layout::kLlmc
                                                            : Layout::kOwn;
  StoredTensors tensors;
  each_part(*store, StoreArena::kValues, [&](const ParameterPart& part, std::int64_t begin) {
    const std::byte* arena = store->values() + begin * size_of(store->element());
    const FilePart file = file_part(layout, files.model, part);
    tensors[folder ? full_name(files.model, file.name) : file.name] =
        stored_part(part, arena, store->element(), file, element);
  });
  if (options.form == ExportForm::kLlmc) return write_llmc(path, files.model, tensors);
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (!folder) return write_safetensors(path, tensors, metadata);
  if (Status s = make_empty_folder(path); !s.ok()) return s;
  for (const auto& [name, contents] : hugging_face_files(files.model, element, tokenizer)) {
    if (Status s = write_file(path / name, contents); !s.ok()) return s;
  }
  // The last file: where it stands, the folder is whole.
  return write_safetensors(path / "model.safetensors", tensors, metadata);
}

}  // namespace flashlab::train
