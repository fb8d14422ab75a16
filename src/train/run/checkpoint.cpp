#include "train/run/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/json.h"
#include "train/data/files.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

// Copies a part between the arena and a file's bytes, turning it where files hold it turned.
struct PartView {
  std::byte* arena;
  std::int64_t element_bytes;
  const ParameterPart& part;
};

void copy_part(const PartView& view, char* file, bool into_file) {
  const std::int64_t rows = view.part.shape[0];
  const std::int64_t columns = view.part.shape.size() > 1 ? view.part.shape[1] : 1;
  char* arena = reinterpret_cast<char*>(view.arena);
  if (!view.part.transposed) {
    const auto bytes = static_cast<std::size_t>(rows * columns * view.element_bytes);
    std::memcpy(into_file ? file : arena, into_file ? arena : file, bytes);
    return;
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      char* here = arena + (row * columns + column) * view.element_bytes;
      char* there = file + (column * rows + row) * view.element_bytes;
      std::memcpy(into_file ? there : here, into_file ? here : there,
                  static_cast<std::size_t>(view.element_bytes));
    }
  }
}

std::vector<std::int64_t> file_shape(const ParameterPart& part) {
  std::vector<std::int64_t> shape = part.shape;
  if (part.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

// A tensor of a file, and where it lies in the store.
struct Entry {
  std::string name;
  StoreArena arena;
  const ParameterPart& part;
  std::int64_t begin;
};

void add_entries(const ParameterStore& store, StoreArena arena, const std::string& prefix,
                 std::vector<Entry>& out) {
  each_part(store, arena, [&](const ParameterPart& part, std::int64_t begin) {
    out.push_back({prefix + part.name, arena, part, begin});
  });
}

// visit(entry, bytes as files hold them) of one after the other.
template <class Visit>
Status each_tensor(const ParameterStore& store, const ReadElements& read,
                   const std::vector<Entry>& entries, const Visit& visit) {
  std::vector<std::byte> bytes;
  std::string file;
  const std::int64_t size = size_of(store.element());
  for (const Entry& each : entries) {
    const std::int64_t count = elements_of(each.part);
    bytes.resize(static_cast<std::size_t>(count * size));
    file.resize(bytes.size());
    const Status s = read(each.arena, each.begin, each.begin + count, bytes.data());
    if (!s.ok()) return s;
    copy_part({bytes.data(), size, each.part}, file.data(), true);
    visit(each, file);
  }
  return {};
}

// Whether every number is finite: its exponent's bits are not all ones.
template <class Word>
bool finite(const std::string& bytes, Word exponent) {
  bool out = true;
  for (std::size_t at = 0; at + sizeof(Word) <= bytes.size(); at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    out = out && static_cast<Word>(word & exponent) != exponent;
  }
  return out;
}

bool finite(const StoredTensor& tensor) {
  switch (tensor.element) {
    case Element::kFp64:
      return finite<std::uint64_t>(tensor.bytes, 0x7ff0000000000000u);
    case Element::kFp32:
      return finite<std::uint32_t>(tensor.bytes, 0x7f800000u);
    case Element::kFp16:
      return finite<std::uint16_t>(tensor.bytes, 0x7c00);
    default:
      return finite<std::uint16_t>(tensor.bytes, 0x7f80);
  }
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// All are looked at before the first is taken: a refused file changes nothing.
Status distribute(const fs::path& file, const ParameterStore& store, StoreArena arena,
                  const std::string& prefix, StoredTensors& tensors) {
  Status status;
  std::size_t wanted = 0;
  each_part(store, arena, [&](const ParameterPart& part, std::int64_t) {
    if (!status.ok()) return;
    ++wanted;
    const auto found = tensors.find(prefix + part.name);
    if (found == tensors.end()) {
      status = Status::invalid({file.string(), "no tensor " + prefix + part.name,
                                "the weights of this model", "another model's file?"});
      return;
    }
    const StoredTensor& tensor = found->second;
    if (tensor.shape != file_shape(part) || tensor.element != store.element()) {
      status = Status::invalid(
          {fmt::format("{}: {}", file.string(), found->first),
           fmt::format("{} {}", to_string(tensor.element), shape_text(tensor.shape)),
           fmt::format("{} {}", to_string(store.element()), shape_text(file_shape(part))),
           "another model's file?"});
    } else if (!finite(tensor)) {
      status = Status::invalid({fmt::format("{}: {}", file.string(), found->first),
                                "NaN or infinity", "finite numbers", "the file is damaged"});
    }
  });
  if (!status.ok()) return status;
  std::size_t with_prefix = 0;
  for (const auto& [name, tensor] : tensors) with_prefix += name.starts_with(prefix);
  if (with_prefix != wanted) {
    return Status::invalid({file.string(), fmt::format("{} tensors", with_prefix),
                            fmt::format("the model's {}", wanted), "another model's file?"});
  }
  const std::int64_t element = size_of(store.element());
  std::vector<std::byte> bytes;
  each_part(store, arena, [&](const ParameterPart& part, std::int64_t begin) {
    const std::int64_t count = elements_of(part);
    bytes.resize(static_cast<std::size_t>(count * element));
    copy_part({bytes.data(), element, part}, tensors.at(prefix + part.name).bytes.data(), false);
    store.each_piece(arena, begin, begin + count,
                     [&](std::int64_t first, std::int64_t elements, std::int64_t at) {
                       std::copy_n(bytes.data() + (first - begin) * element, elements * element,
                                   store.data(arena) + at * element);
                     });
  });
  return {};
}

constexpr const char* kFirst = "first_moment.";
constexpr const char* kSecond = "second_moment.";

// The N of "step-N"; -1 for any other name.
std::int64_t step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with("step-") || name.size() > 24) return -1;
  std::int64_t step = 0;
  for (const char c : name.substr(5)) {
    if (c < '0' || c > '9') return -1;
    step = 10 * step + (c - '0');
  }
  return name.size() > 5 ? step : -1;
}

std::vector<std::pair<std::int64_t, fs::path>> checkpoints_in(const fs::path& folder) {
  std::vector<std::pair<std::int64_t, fs::path>> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (const std::int64_t step = step_of(it->path()); step >= 0)
      out.emplace_back(step, it->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

void remove_leftovers(const fs::path& folder, int keep) {
  std::error_code ignored;
  auto all = checkpoints_in(folder);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
    fs::remove_all(all[i].second, ignored);
  }
  std::vector<fs::path> unfinished;
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("saving-step-")) unfinished.push_back(it->path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, ignored);
}

// In the order of a file.
std::vector<Entry> entries_of(const ParameterStore& store, bool moments) {
  std::vector<Entry> out;
  if (moments) {
    add_entries(store, StoreArena::kFirstMoments, kFirst, out);
    add_entries(store, StoreArena::kSecondMoments, kSecond, out);
  } else {
    add_entries(store, StoreArena::kValues, "", out);
  }
  std::vector<std::size_t> order(out.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return out[i].name; });
  std::vector<Entry> sorted;
  for (const std::size_t i : order) sorted.push_back(out[i]);
  return sorted;
}

// Tensor after tensor. What cannot be written is told by `failed`; all is read nevertheless,
// because other ranks read along. Errors: those of `read`.
Status write_tensors(const fs::path& file, const ParameterStore& store, const ReadElements& read,
                     bool moments, Status& failed) {
  const std::vector<Entry> entries = entries_of(store, moments);
  StoredShapes shapes;
  for (const Entry& each : entries) shapes[each.name] = {store.element(), file_shape(each.part)};
  std::map<std::string, std::string> metadata;
  if (!moments) metadata["format"] = "pt";
  Result<SafetensorsWriter> writer = SafetensorsWriter();
  if (failed.ok()) writer = SafetensorsWriter::create(file, std::move(shapes), metadata);
  if (!writer.ok()) failed = writer.status();
  const Status lost = each_tensor(store, read, entries, [&](const Entry&, std::string_view bytes) {
    if (failed.ok()) failed = writer->add(bytes);
  });
  if (lost.ok() && failed.ok()) failed = writer->finish();
  return lost;
}

Status write_contents(const fs::path& at, const RunState& state, const ParameterStore& store,
                      const ReadElements& read, Status failed) {
  for (const bool moments : {false, true}) {
    const char* name = moments ? "optimizer.safetensors" : "model.safetensors";
    if (Status s = write_tensors(at / name, store, read, moments, failed); !s.ok()) return s;
  }
  if (!failed.ok()) return failed;
  for (const auto& [name, text] : state.others) {
    if (Status s = write_file(at / name, text); !s.ok()) return s;
  }
  nlohmann::ordered_json json;
  json["step"] = state.step;
  json["model"] = base::read_json<nlohmann::ordered_json>(state.model.to_json());
  if (state.loss_scale[0] != 0) json["loss_scale"] = state.loss_scale;
  if (state.best_look) {
    json["best_validation_loss"] = *state.best_look;
    json["looks_since"] = state.looks_since;
  }
  if (!state.config.empty()) json["config"] = base::read_json<nlohmann::ordered_json>(state.config);
  return write_file(at / "state.json", base::json_text(json, 1) + "\n");
}

}  // namespace

ReadElements own_elements(const ParameterStore& store) {
  return [&store](StoreArena arena, std::int64_t begin, std::int64_t end, std::byte* to) {
    const std::int64_t size = size_of(store.element());
    std::copy_n(store.data(arena) + begin * size, (end - begin) * size, to);
    return Status();
  };
}

StoredTensors stored(const ParameterStore& store, std::byte* arena) {
  StoredTensors out;
  const std::int64_t size = size_of(store.element());
  const auto read = [&](StoreArena, std::int64_t begin, std::int64_t end, std::byte* to) {
    std::copy_n(arena + begin * size, (end - begin) * size, to);
    return Status();
  };
  static_cast<void>(each_tensor(store, read, entries_of(store, /*moments=*/false),
                                [&](const Entry& each, const std::string& bytes) {
                                  out[each.name] = {store.element(), file_shape(each.part), bytes};
                                }));
  return out;
}

Status put_weights(const fs::path& source, StoredTensors& tensors, ParameterStore& store) {
  if (Status s = distribute(source, store, StoreArena::kValues, "", tensors); !s.ok()) return s;
  store.round_copies();
  return {};
}

Status save_weights(const fs::path& file, const ParameterStore& store) {
  return write_safetensors(file, stored(store, store.values()), {{"format", "pt"}});
}

Status save_checkpoint(const fs::path& folder, const RunState& state, const ParameterStore& store,
                       int keep, const ReadElements& read) {
  const fs::path unfinished = folder / fmt::format("saving-step-{}", state.step);
  const fs::path finished = folder / fmt::format("step-{}", state.step);
  std::error_code error;
  fs::remove_all(unfinished, error);
  fs::create_directories(unfinished, error);
  Status made;
  if (error) {
    errno = error.value();
    made = io_error(unfinished, "created");
  }
  if (Status s = write_contents(unfinished, state, store, read ? read : own_elements(store), made);
      !s.ok()) {
    fs::remove_all(unfinished, error);
    return s;
  }
  sync_folder(unfinished);
  fs::remove_all(finished, error);
  fs::rename(unfinished, finished, error);
  if (error) {
    errno = error.value();
    return io_error(finished, "renamed");
  }
  sync_folder(folder);
  remove_leftovers(folder, keep);
  return {};
}

Status read_checkpoint(const ParameterStore& store, const ReadElements& read) {
  for (const bool moments : {false, true}) {
    const Status s = each_tensor(store, read, entries_of(store, moments), [](const auto&...) {});
    if (!s.ok()) return s;
  }
  return {};
}

Result<fs::path> find_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path / "state.json", ignored)) return path;
  const auto all = checkpoints_in(path);
  if (!all.empty()) return all.back().second;
  return Status::invalid({path.string(), "no checkpoint", "a run's folder, or its step-N",
                          "flashlab train writes one into results/"});
}

std::optional<fs::path> older_checkpoint(const fs::path& checkpoint) {
  std::optional<fs::path> out;
  for (const auto& [step, folder] : checkpoints_in(checkpoint.parent_path())) {
    if (folder == checkpoint) return out;
    out = folder;
  }
  return std::nullopt;
}

std::optional<fs::path> find_run(const fs::path& folder) {
  std::error_code ignored;
  const auto all = checkpoints_in(folder);
  if (!all.empty()) return all.back().second;
  const fs::path config = folder / "config.json";
  return fs::exists(config, ignored) ? std::optional(config) : std::nullopt;
}

Result<RunState> load_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / "state.json";
  Result<std::string> text = read_file(file);
  if (!text.ok()) return text.status();
  const auto json = base::read_json(*text);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer() ||
      !json.contains("model")) {
    return Status::invalid({file.string(), "no state of a run", "what flashlab train writes", ""});
  }
  Result<ModelConfig> model = parse_model(base::json_text(json["model"]), file.string());
  if (!model.ok()) return model.status();
  RunState out = {json["step"].get<std::int64_t>(), *model};
  // A folder that was renamed on purpose has no step in its name.
  const std::int64_t named = step_of(fs::absolute(checkpoint).lexically_normal());
  if (out.step < 0 || (named >= 0 && named != out.step)) {
    return Status::invalid(
        {file.string(), fmt::format("step {}", out.step),
         named >= 0 ? fmt::format("{}, as its folder says", named) : std::string("at least 0"),
         "the file is damaged or edited"});
  }
  if (const auto config = json.find("config"); config != json.end())
    out.config = base::json_text(*config);
  const auto best = json.find("best_validation_loss"), since = json.find("looks_since");
  if (best != json.end() && since != json.end() && best->is_number() &&
      since->is_number_integer()) {
    out.best_look = best->get<double>();
    out.looks_since = since->get<std::int64_t>();
  }
  const auto scale = json.find("loss_scale");
  if (scale == json.end()) return out;
  const bool numbers = scale->is_array() && scale->size() == out.loss_scale.size() &&
                       std::all_of(scale->begin(), scale->end(),
                                   [](const auto& number) { return number.is_number(); });
  if (!numbers) {
    return Status::invalid({file.string(), "a loss scale that is none", "four numbers", ""});
  }
  out.loss_scale = scale->get<std::array<float, kLossScaleNumbers>>();
  return out;
}

Status load_weights(const fs::path& file, ParameterStore& store) {
  Result<StoredTensors> tensors = read_safetensors(file);
  if (!tensors.ok()) return tensors.status();
  return put_weights(file, *tensors, store);
}

Status load_moments(const fs::path& file, ParameterStore& store) {
  Result<StoredTensors> tensors = read_safetensors(file);
  if (!tensors.ok()) return tensors.status();
  if (Status s = distribute(file, store, StoreArena::kFirstMoments, kFirst, *tensors); !s.ok()) {
    return s;
  }
  return distribute(file, store, StoreArena::kSecondMoments, kSecond, *tensors);
}

}  // namespace flashlab::train
