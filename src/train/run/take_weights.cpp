#include "train/run/take_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "train/cpu/narrow.h"
#include "train/run/checkpoint.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

struct Place {
  const ParameterPart* part;
  FilePart file;
  const MappedTensor* tensor;
  std::int64_t begin;  ///< its first element of all
};

/// What does not fit, all of it at once.
class Misfits {
 public:
  void add(std::string what) {
    if (++count_ <= kShown) shown_.push_back(std::move(what));
  }
  Status status(const ModelFiles& files) const {
    if (count_ == 0) return {};
    std::string got =
        fmt::format("{} tensor{} that do{} not fit: {}", count_, count_ == 1 ? "" : "s",
                    count_ == 1 ? "es" : "", fmt::join(shown_, "; "));
    if (count_ > kShown) got += fmt::format("; and {} more", count_ - kShown);
    return Status::invalid({files.path.string(), std::move(got),
                            fmt::format("the weights of {} layers, width {}, {} heads",
                                        files.model.layers, files.model.width, files.model.heads),
                            "another model's file?"});
  }

 private:
  static constexpr std::size_t kShown = 12;
  std::size_t count_ = 0;
  std::vector<std::string> shown_;
};

std::string shape_words(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Shape of the whole tensor in the file, which may have more rows than the store.
std::vector<std::int64_t> expected_shape(const ModelFiles& files, const ParameterPart& part,
                                         const FilePart& file) {
  std::vector<std::int64_t> shape = part.shape;
  if (file.rows == Rows::kVocabulary) shape[0] = files.model.vocabulary;
  if (file.rows == Rows::kPositions) shape[0] = files.model.context;
  if (file.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

bool fits(const MappedTensor& tensor, const std::vector<std::int64_t>& expected, Rows rows) {
  if (tensor.shape == expected) return true;
  return rows == Rows::kVocabulary && tensor.shape.size() == 2 && tensor.shape[1] == expected[1] &&
         tensor.shape[0] > expected[0];
}

// Elements [first, first + count) of a tensor.
void widen(const MappedTensor& tensor, std::int64_t first, std::int64_t count, float* out) {
  const char* from = tensor.bytes.data() + first * size_of(*tensor.element);
  if (*tensor.element == Element::kFp32) {
    std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(float));
  } else if (*tensor.element == Element::kFp64) {
    for (std::int64_t i = 0; i < count; ++i) {
      double number;
      std::memcpy(&number, from + 8 * i, sizeof number);
      out[i] = static_cast<float>(number);
    }
  } else {
    std::vector<std::uint16_t> narrow(static_cast<std::size_t>(count));
    std::memcpy(narrow.data(), from, narrow.size() * sizeof(std::uint16_t));
    cpu::widen(*tensor.element, narrow.data(), out, count);
  }
}

void widen(const MappedTensor& tensor, std::int64_t first, std::int64_t count, double* out) {
  if (*tensor.element == Element::kFp64) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(double);
    std::memcpy(out, tensor.bytes.data() + first * 8, bytes);
    return;
  }
  std::vector<float> wide(static_cast<std::size_t>(count));
  widen(tensor, first, count, wide.data());
  std::copy(wide.begin(), wide.end(), out);
}

template <class Wide>
void put(Element element, const Wide* from, std::int64_t count, std::byte* to) {
  if (element == Element::kFp64) {
    std::copy(from, from + count, reinterpret_cast<double*>(to));
    return;
  }
  std::vector<float> wide(from, from + count);
  if (element == Element::kFp32) {
    std::memcpy(to, wide.data(), wide.size() * sizeof(float));
  } else {
    cpu::narrow(element, wide.data(), reinterpret_cast<std::uint16_t*>(to), count);
  }
}

// The row here of a row of the file: a head's halves become pairs.
std::int64_t row_here(std::int64_t row, std::int64_t head) {
  if (head == 0) return row;
  const std::int64_t inside = row % head, half = head / 2;
  return row - inside + 2 * (inside % half) + inside / half;
}

// In blocks of rows of the store, so that memory stays bounded. False: a number is none.
template <class Wide>
bool copy_in(const Place& place, Element element, std::byte* to) {
  const std::int64_t rows = place.part->shape[0];
  const std::int64_t columns = place.part->shape.size() > 1 ? place.part->shape[1] : 1;
  const std::int64_t bytes = size_of(element);
  bool finite = true;
  const auto look = [&](const std::vector<Wide>& numbers) {
    for (const Wide number : numbers) finite = finite && std::isfinite(number);
  };
  if (!place.file.transposed) {
    std::vector<Wide> row(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      widen(*place.tensor, r * columns, columns, row.data());
      look(row);
      put(element, row.data(), columns, to + row_here(r, place.file.halves_of) * columns * bytes);
    }
    return finite;
  }
  // Whole lines of memory are written at once: the file's rows are the columns here.
  constexpr std::int64_t kBlock = 64;
  std::vector<Wide> block(static_cast<std::size_t>(kBlock * rows)), line(kBlock);
  for (std::int64_t first = 0; first < columns; first += kBlock) {
    const std::int64_t count = std::min(kBlock, columns - first);
    block.resize(static_cast<std::size_t>(count * rows));
    widen(*place.tensor, first * rows, count * rows, block.data());
    look(block);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < count; ++c) {
        line[static_cast<std::size_t>(c)] = block[static_cast<std::size_t>(c * rows + r)];
      }
      put(element, line.data(), count, to + (r * columns + first) * bytes);
    }
  }
  return finite;
}

// Every part with its tensor; what is missing or left over goes into `misfits`.
std::vector<Place> places_of(const ModelFiles& files, const ParameterStore& store,
                             Misfits& misfits) {
  std::map<std::string, const MappedTensor*> found;
  for (const auto& [name, tensor] : files.tensors) {
    const std::string bare = bare_name(files.layout, name);
    if (!found.emplace(bare, &tensor).second) misfits.add(bare + " twice");
  }
  std::vector<Place> out;
  std::set<std::string> used;
  each_part(store, StoreArena::kValues, [&](const ParameterPart& part, std::int64_t begin) {
    const FilePart file = file_part(files.layout, files.model, part);
    const std::vector<std::int64_t> shape = expected_shape(files, part, file);
    used.insert(file.name);
    const auto at = found.find(file.name);
    if (at == found.end()) {
      misfits.add(fmt::format("no {}, expected {}", file.name, shape_words(shape)));
      return;
    }
    const MappedTensor& tensor = *at->second;
    if (!tensor.element || !fits(tensor, shape, file.rows)) {
      misfits.add(fmt::format("{} {} {}, expected {} of F64, F32, F16 or BF16", file.name,
                              tensor.type, shape_words(tensor.shape), shape_words(shape)));
      return;
    }
    out.push_back({&part, file, &tensor, begin});
  });
  for (const auto& [name, tensor] : found) {
    if (used.contains(name) || (files.layout != Layout::kOwn && is_buffer(name))) continue;
    const auto twin = tied_to(files.model, name);
    const auto at = twin ? found.find(*twin) : found.end();
    if (at == found.end()) {
      misfits.add(fmt::format("{} {} {}, which this model does not have", name, tensor->type,
                              shape_words(tensor->shape)));
    } else if (at->second->bytes != tensor->bytes) {
      misfits.add(fmt::format("{}, which is not equal to {}: this model's head is its embedding",
                              name, *twin));
    }
  }
  return out;
}

}  // namespace

Result<ModelFiles> open_model(const fs::path& path) {
  const Result<fs::path> checkpoint = find_checkpoint(path);
  std::error_code ignored;
  if (!checkpoint.ok()) {
    const bool foreign =
        fs::is_directory(path, ignored) ? is_hugging_face_folder(path) : fs::exists(path, ignored);
    if (!foreign) {
      ErrorDetail detail = checkpoint.status().detail();
      detail.expected +=
          ", a folder of Hugging Face (config.json, model.safetensors), or llm.c's .bin";
      return Status::invalid(std::move(detail));
    }
    return open_foreign_model(path);
  }
  const Result<RunState> state = load_state(*checkpoint);
  if (!state.ok()) return state.status();
  ModelFiles out;
  out.model = state->model;
  out.path = *checkpoint / "model.safetensors";
  Result<MappedTensors> tensors = map_safetensors(out.path, out.mapped.emplace_back());
  if (!tensors.ok()) return tensors.status();
  out.tensors = std::move(*tensors);
  for (const fs::path& folder : {*checkpoint, fs::absolute(*checkpoint).parent_path()}) {
    out.tokenizer = folder / "tokenizer.json";
    if (fs::exists(out.tokenizer, ignored)) break;
  }
  return out;
}

Status take_weights(const ModelFiles& files, const ParameterStore& store) {
  Misfits misfits;
  const std::vector<Place> places = places_of(files, store, misfits);
  if (Status s = misfits.status(files); !s.ok()) return s;
  const std::int64_t element = size_of(store.element());
  std::vector<std::byte> whole;
  for (const Place& place : places) {
    const std::int64_t count = elements_of(*place.part);
    whole.resize(static_cast<std::size_t>(count * element));
    const bool wide = store.element() == Element::kFp64 && *place.tensor->element == Element::kFp64;
    const bool finite = wide ? copy_in<double>(place, store.element(), whole.data())
                             : copy_in<float>(place, store.element(), whole.data());
    if (finite) {
      // The store may have a part of it.
      store.each_piece(StoreArena::kValues, place.begin, place.begin + count,
                       [&](std::int64_t first, std::int64_t elements, std::int64_t at) {
                         std::copy_n(whole.data() + (first - place.begin) * element,
                                     elements * element,
                                     store.data(StoreArena::kValues) + at * element);
                       });
      continue;
    }
    return Status::invalid({fmt::format("{}: {}", files.path.string(), place.file.name),
                            "NaN or infinity", "finite numbers", "the file is damaged"});
  }
  store.round_copies();
  return {};
}

}  // namespace flashlab::train
