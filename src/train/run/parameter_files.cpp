#include "train/run/parameter_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

// Elements [first, first + count) of a part, as its arena has them, and the part's bytes in a
// file, which may have it turned.
struct PartView {
  const ParameterPart& part;
  std::int64_t element_bytes;
  std::int64_t first, count;
};

// copy(where among the elements, where in the file, bytes).
template <class Copy>
void each_run(const PartView& view, const Copy& copy) {
  const std::int64_t bytes = view.element_bytes;
  if (!view.part.transposed) {
    copy(std::int64_t{0}, view.first * bytes, view.count * bytes);
    return;
  }
  const std::int64_t rows = view.part.shape[0];
  const std::int64_t columns = view.part.shape.size() > 1 ? view.part.shape[1] : 1;
  std::int64_t row = view.first / columns, column = view.first % columns;
  for (std::int64_t i = 0; i < view.count; ++i) {
    copy(i * bytes, (column * rows + row) * bytes, bytes);
    if (++column == columns) {
      column = 0;
      ++row;
    }
  }
}

void into_file(const PartView& view, const std::byte* elements, char* file) {
  each_run(view, [&](std::int64_t here, std::int64_t there, std::int64_t bytes) {
    std::memcpy(file + there, elements + here, static_cast<std::size_t>(bytes));
  });
}

void out_of_file(const PartView& view, const char* file, std::byte* elements) {
  each_run(view, [&](std::int64_t here, std::int64_t there, std::int64_t bytes) {
    std::memcpy(elements + here, file + there, static_cast<std::size_t>(bytes));
  });
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

constexpr const char* kFirst = "first_moment.";
constexpr const char* kSecond = "second_moment.";

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

// Whether every number is finite: its exponent's bits are not all ones.
template <class Word>
bool finite(std::string_view bytes, Word exponent) {
  bool out = true;
  for (std::size_t at = 0; at + sizeof(Word) <= bytes.size(); at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    out = out && static_cast<Word>(word & exponent) != exponent;
  }
  return out;
}

bool finite(Element element, std::string_view bytes) {
  switch (element) {
    case Element::kFp64:
      return finite<std::uint64_t>(bytes, 0x7ff0000000000000u);
    case Element::kFp32:
      return finite<std::uint32_t>(bytes, 0x7f800000u);
    case Element::kFp16:
      return finite<std::uint16_t>(bytes, 0x7c00);
    default:
      return finite<std::uint16_t>(bytes, 0x7f80);
  }
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// visit(elements of a part that the store has, their first in the store).
template <class Visit>
void each_own_piece(const ParameterStore& store, StoreArena arena, const ParameterPart& part,
                    std::int64_t begin, const Visit& visit) {
  constexpr std::int64_t kMost = 1 << 20;
  const std::int64_t size = size_of(store.element());
  store.each_piece(
      arena, begin, begin + elements_of(part),
      [&](std::int64_t first, std::int64_t elements, std::int64_t at) {
        for (std::int64_t done = 0; done < elements; done += kMost) {
          visit(PartView{part, size, first - begin + done, std::min(kMost, elements - done)},
                at + done);
        }
      });
}

Status check_tensor(const fs::path& file, const ParameterStore& store, const Entry& entry,
                    const MappedTensors& tensors) {
  const auto found = tensors.find(entry.name);
  if (found == tensors.end()) {
    return Status::invalid({file.string(), "no tensor " + entry.name, "the weights of this model",
                            "another model's file?"});
  }
  const MappedTensor& tensor = found->second;
  const std::string name = fmt::format("{}: {}", file.string(), entry.name);
  if (tensor.shape != file_shape(entry.part) || tensor.element != store.element()) {
    const std::string type = tensor.element ? std::string(to_string(*tensor.element)) : tensor.type;
    return Status::invalid(
        {name, fmt::format("{} {}", type, shape_text(tensor.shape)),
         fmt::format("{} {}", to_string(store.element()), shape_text(file_shape(entry.part))),
         "another model's file?"});
  }
  bool all_finite = true;
  std::vector<std::byte> piece;
  each_own_piece(store, entry.arena, entry.part, entry.begin,
                 [&](const PartView& view, std::int64_t) {
                   const auto bytes = static_cast<std::size_t>(view.count * view.element_bytes);
                   piece.resize(bytes);
                   out_of_file(view, tensor.bytes.data(), piece.data());
                   const auto* at = reinterpret_cast<const char*>(piece.data());
                   all_finite = all_finite && finite(store.element(), {at, bytes});
                 });
  if (all_finite) return {};
  return Status::invalid({name, "NaN or infinity", "finite numbers", "the file is damaged"});
}

// All are looked at before the first is taken: a refused file changes nothing. Of a file's numbers
// those are read that the store has a place for.
Status take(const fs::path& file, const MappedTensors& tensors, bool moments,
            const ParameterStore& store) {
  const std::vector<Entry> entries = entries_of(store, moments);
  for (const Entry& entry : entries) {
    if (Status s = check_tensor(file, store, entry, tensors); !s.ok()) return s;
  }
  if (tensors.size() != entries.size()) {
    return Status::invalid({file.string(), fmt::format("{} tensors", tensors.size()),
                            fmt::format("the model's {}", entries.size()),
                            "another model's file?"});
  }
  for (const Entry& entry : entries) {
    const char* from = tensors.at(entry.name).bytes.data();
    std::byte* to = store.data(entry.arena);
    each_own_piece(store, entry.arena, entry.part, entry.begin,
                   [&](const PartView& view, std::int64_t at) {
                     out_of_file(view, from, to + at * view.element_bytes);
                   });
  }
  return {};
}

// Says that it is rank 0, where any rank could be; of the others `agree` says so.
Status of_rank(const Ranks& ranks, const Status& status) {
  if (status.ok() || ranks.size() == 1 || !ranks.leads()) return status;
  ErrorDetail detail = status.detail();
  detail.argument = "rank 0: " + detail.argument;
  return {status.code(), std::move(detail)};
}

// Reads one tensor after the other with the other ranks, and adds every ranks-th of them. What
// cannot be written is read nevertheless, because others read along. Errors: a lost rank.
Status add_tensors(const ParameterStore& store, const Ranks& ranks,
                   const std::vector<Entry>& entries, Result<SafetensorsWriter>& writer,
                   Status& own) {
  const ReadElements read = whole_elements(ranks, store);
  std::vector<std::byte> elements;
  std::string bytes;
  int index = 0;
  for (const Entry& each : entries) {
    const bool mine = index++ % ranks.size() == ranks.rank();
    if (!mine && store.is_whole(each.arena)) continue;
    const PartView view = {each.part, size_of(store.element()), 0, elements_of(each.part)};
    elements.resize(static_cast<std::size_t>(view.count * view.element_bytes));
    const Status lost = read(each.arena, each.begin, each.begin + view.count, elements.data());
    if (!lost.ok()) return lost;
    if (!mine || !own.ok()) continue;
    bytes.resize(elements.size());
    into_file(view, elements.data(), bytes.data());
    own = writer->add(each.name, bytes);
  }
  return {};
}

}  // namespace

StoredTensors stored(const ParameterStore& store, std::byte* arena) {
  StoredTensors out;
  for (const Entry& each : entries_of(store, /*moments=*/false)) {
    const PartView view = {each.part, size_of(store.element()), 0, elements_of(each.part)};
    StoredTensor& tensor = out[each.name];
    tensor = {store.element(), file_shape(each.part), {}};
    tensor.bytes.resize(static_cast<std::size_t>(view.count * view.element_bytes));
    into_file(view, arena + each.begin * view.element_bytes, tensor.bytes.data());
  }
  return out;
}

Status put_weights(const fs::path& source, const StoredTensors& tensors, ParameterStore& store) {
  MappedTensors views;
  for (const auto& [name, tensor] : tensors) {
    views[name] = {tensor.element, std::string(safetensors_type(tensor.element)), tensor.shape,
                   tensor.bytes};
  }
  if (Status s = take(source, views, /*moments=*/false, store); !s.ok()) return s;
  store.round_copies();
  return {};
}

Status save_weights(const fs::path& file, const ParameterStore& store) {
  return write_safetensors(file, stored(store, store.values()), {{"format", "pt"}});
}

Status load_weights(const fs::path& file, ParameterStore& store) {
  MappedFile mapped;
  const Result<MappedTensors> tensors = map_safetensors(file, mapped);
  if (!tensors.ok()) return tensors.status();
  if (Status s = take(file, *tensors, /*moments=*/false, store); !s.ok()) return s;
  store.round_copies();
  return {};
}

Status write_parameters(const fs::path& folder, const ParameterStore& store, const Ranks& ranks) {
  for (const ParameterFile& kind : kParameterFiles) {
    const fs::path file = folder / kind.name;
    const std::vector<Entry> entries = entries_of(store, kind.moments);
    StoredShapes shapes;
    for (const Entry& each : entries) shapes[each.name] = {store.element(), file_shape(each.part)};
    std::map<std::string, std::string> metadata;
    if (!kind.moments) metadata["format"] = "pt";
    Result<SafetensorsWriter> writer = SafetensorsWriter();
    if (ranks.leads()) writer = SafetensorsWriter::create(file, shapes, metadata);
    if (Status s = ranks.agree(of_rank(ranks, writer.status())); !s.ok()) return s;
    if (!ranks.leads()) writer = SafetensorsWriter::join(file, shapes, metadata);
    Status own = writer.status();
    if (Status lost = add_tensors(store, ranks, entries, writer, own); !lost.ok()) return lost;
    const std::uint64_t digest = own.ok() ? writer->digest() : 0;
    if (own.ok() && !ranks.leads()) own = writer->sync();
    if (Status s = ranks.agree(of_rank(ranks, own)); !s.ok()) return s;
    const Result<std::uint64_t> all = ranks.sum(digest);
    if (!all.ok()) return all.status();
    if (ranks.leads()) own = writer->finish(*all);
    if (Status s = ranks.agree(of_rank(ranks, own)); !s.ok()) return s;
  }
  return {};
}

Status read_parameters(const fs::path& folder, ParameterStore& store, const Ranks& ranks) {
  struct Opened {
    MappedFile mapped;
    Result<MappedTensors> tensors = MappedTensors();
    DigestPart digest;
  };
  std::array<Opened, std::size(kParameterFiles)> files;
  Status own;
  for (std::size_t i = 0; i < files.size() && own.ok(); ++i) {
    files[i].digest = {.part = ranks.rank(), .parts = ranks.size()};
    files[i].tensors =
        map_safetensors(folder / kParameterFiles[i].name, files[i].mapped, files[i].digest);
    own = files[i].tensors.status();
  }
  if (Status s = ranks.agree(own); !s.ok()) return s;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Result<std::uint64_t> all = ranks.sum(files[i].digest.sum);
    if (!all.ok()) return all.status();
    const fs::path file = folder / kParameterFiles[i].name;
    if (Status s = check_digest(file, files[i].digest, *all); !s.ok()) return s;
  }
  for (std::size_t i = 0; i < files.size() && own.ok(); ++i) {
    own = take(folder / kParameterFiles[i].name, *files[i].tensors, kParameterFiles[i].moments,
               store);
  }
  if (Status s = ranks.agree(own); !s.ok()) return s;
  store.round_copies();
  return {};
}

}  // namespace flashlab::train
