#include "train/weights/llmc.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

#include "train/data/files.h"

namespace flashlab::train {
namespace {

constexpr std::size_t kHeaderInts = 256;
constexpr std::size_t kHeaderBytes = kHeaderInts * sizeof(std::int32_t);
constexpr std::int32_t kMagic = 20240326, kFp32 = 3, kBf16 = 5;
constexpr std::int64_t kPadding = 128;

/// A tensor of the file: `name` of one layer, all layers one behind the other.
struct Run {
  std::string name;  ///< "*" for the layer's number; without: outside of the layers
  std::vector<std::int64_t> shape;
};

std::vector<Run> runs_of(const ModelConfig& m, std::int64_t padded) {
  const std::int64_t c = m.width, hidden = 4 * c;
  return {{"wte.weight", {padded, c}},
          {"wpe.weight", {m.context, c}},
          {"h.*.ln_1.weight", {c}},
          {"h.*.ln_1.bias", {c}},
          {"h.*.attn.c_attn.weight", {3 * c, c}},
          {"h.*.attn.c_attn.bias", {3 * c}},
          {"h.*.attn.c_proj.weight", {c, c}},
          {"h.*.attn.c_proj.bias", {c}},
          {"h.*.ln_2.weight", {c}},
          {"h.*.ln_2.bias", {c}},
          {"h.*.mlp.c_fc.weight", {hidden, c}},
          {"h.*.mlp.c_fc.bias", {hidden}},
          {"h.*.mlp.c_proj.weight", {c, hidden}},
          {"h.*.mlp.c_proj.bias", {c}},
          {"ln_f.weight", {c}},
          {"ln_f.bias", {c}}};
}

// visit(name, shape) for every tensor in the order of the file.
template <class Visit>
void each_tensor(const ModelConfig& model, std::int64_t padded, const Visit& visit) {
  for (const Run& run : runs_of(model, padded)) {
    const std::size_t star = run.name.find('*');
    if (star == std::string::npos) {
      visit(run.name, run.shape);
      continue;
    }
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      visit(fmt::format("{}{}{}", run.name.substr(0, star), layer, run.name.substr(star + 1)),
            run.shape);
    }
  }
}

std::size_t count_of(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return count;
}

}  // namespace

bool is_llmc(std::string_view bytes) {
  std::int32_t magic = 0;
  if (bytes.size() < sizeof magic) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == kMagic;
}

Result<LlmcModel> map_llmc(const std::filesystem::path& path, std::string_view bytes) {
  const auto damaged = [&](std::string got, std::string expected) {
    return Status::invalid({path.string(), std::move(got), std::move(expected),
                            "write it again by train_gpt2.py of llm.c"});
  };
  if (bytes.size() < kHeaderBytes) {
    return damaged(fmt::format("{} bytes", bytes.size()), "a header of 1024 bytes");
  }
  std::array<std::int32_t, 8> header{};
  std::memcpy(header.data(), bytes.data(), sizeof header);
  const std::int32_t version = header[1];
  if (version != kFp32 && version != kBf16) {
    return damaged(fmt::format("version {}", version), "3 (fp32) or 5 (bf16)");
  }
  LlmcModel out;
  ModelConfig& m = out.model;
  m.family = Family::kGpt2;
  m.context = header[2];
  m.vocabulary = header[3];
  m.layers = header[4];
  m.heads = header[5];
  m.width = header[6];
  m.hidden = 4 * m.width;
  const std::int64_t padded = header[7];
  // Extents of a lying header stay far from overflow.
  constexpr std::int64_t kMost = 1 << 24;
  if (Status s = validate(m);
      !s.ok() || padded < m.vocabulary || m.width > kMost || m.context > kMost || padded > kMost) {
    return damaged(s.ok() ? fmt::format("{} rows for {} words, width {}, context {}", padded,
                                        m.vocabulary, m.width, m.context)
                          : s.message(),
                   "a model of GPT-2's kind");
  }
  const Element element = version == kFp32 ? Element::kFp32 : Element::kBf16;
  const auto element_bytes = static_cast<std::size_t>(size_of(element));
  std::size_t expected = kHeaderBytes;
  each_tensor(m, padded, [&](const std::string&, const std::vector<std::int64_t>& shape) {
    expected += count_of(shape) * element_bytes;
  });
  if (expected != bytes.size()) {
    return damaged(fmt::format("{} bytes", bytes.size()),
                   fmt::format("{}, as its header says", expected));
  }
  std::size_t at = kHeaderBytes;
  each_tensor(m, padded, [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    const std::size_t size = count_of(shape) * element_bytes;
    out.tensors[name] = {element, std::string(safetensors_type(element)), shape,
                         bytes.substr(at, size)};
    at += size;
  });
  return out;
}

Status write_llmc(const std::filesystem::path& path, const ModelConfig& m,
                  const StoredTensors& tensors) {
  const std::int64_t padded = (m.vocabulary + kPadding - 1) / kPadding * kPadding;
  const Element element = tensors.at("wte.weight").element;
  std::array<std::int32_t, kHeaderInts> header{};
  const std::array<std::int64_t, 8> numbers = {kMagic,    element == Element::kFp32 ? kFp32 : kBf16,
                                               m.context, m.vocabulary,
                                               m.layers,  m.heads,
                                               m.width,   padded};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    header[i] = static_cast<std::int32_t>(numbers[i]);
  }
  std::string out(reinterpret_cast<const char*>(header.data()), kHeaderBytes);
  each_tensor(m, padded, [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    out += tensors.at(name).bytes;
    // Rows of words that nobody has are zeros.
    const std::size_t bytes = count_of(shape) * static_cast<std::size_t>(size_of(element));
    out.append(bytes - tensors.at(name).bytes.size(), '\0');
  });
  return write_file(path, out);
}

}  // namespace flashlab::train
