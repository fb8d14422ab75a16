#include "train/weights/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "train/data/files.h"
#include "train/weights/llmc.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

Status not_read(const fs::path& path, std::string got, const fs::path& folder,
                const std::string& more) {
  return Status::invalid(
      {path.string(), std::move(got), "safetensors, or llm.c's .bin",
       fmt::format("python -c \"from transformers import AutoModelForCausalLM as M, AutoTokenizer "
                   "as T; d, o = '{0}', '{0}-safetensors'; M.from_pretrained(d{1})"
                   ".save_pretrained(o); T.from_pretrained(d{1}).save_pretrained(o)\"",
                   folder.string(), more)});
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

Status refuse_torch(const fs::path& file) {
  return not_read(file, "PyTorch's pickled weights, which can run code", folder_of(file), "");
}

Status refuse_gguf(const fs::path& file) {
  return not_read(file, "GGUF", folder_of(file),
                  fmt::format(", gguf_file='{}'", file.filename().string()));
}

// Weights of a kind that is not read, or none.
Status refuse_folder(const fs::path& folder) {
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    const fs::path file = it->path();
    const std::string name = file.filename().string();
    if (file.extension() == ".gguf") return refuse_gguf(file);
    if (name.starts_with("pytorch_model") && file.extension() == ".bin") return refuse_torch(file);
  }
  return Status::invalid({folder.string(), "no weights",
                          fmt::format("{} or {} beside config.json", kWeights, kIndex), ""});
}

Result<std::map<std::string, std::string>> read_index(const fs::path& file) {
  const Result<std::string> text = read_file(file);
  if (!text.ok()) return text.status();
  const auto json = base::read_json(*text);
  const auto damaged = [&](std::string got) {
    return Status::invalid({file.string(), std::move(got),
                            "\"weight_map\" of names and files in the same folder", ""});
  };
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return damaged("no weight_map");
  }
  std::map<std::string, std::string> out;
  for (const auto& [name, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) return damaged(base::json_text(shard).substr(0, 60));
    const fs::path path = shard.get<std::string>();
    if (path.filename() != path || path.empty()) return damaged(path.string());
    out[name] = path.string();
  }
  return out;
}

// All tensors that the index names, and no other.
Status map_shards(const fs::path& folder, ModelFiles& out) {
  const fs::path file = folder / kIndex;
  const auto index = read_index(file);
  if (!index.ok()) return index.status();
  std::set<std::string> shards;
  for (const auto& [name, shard] : *index) shards.insert(shard);
  for (const std::string& shard : shards) {
    Result<MappedTensors> tensors = map_safetensors(folder / shard, out.mapped.emplace_back());
    if (!tensors.ok()) {
      return Status::invalid({file.string(), "the shard " + tensors.status().message(),
                              "every shard that it names", "fetch the missing file"});
    }
    for (auto& [name, tensor] : *tensors) {
      const auto named = index->find(name);
      if (named == index->end() || named->second != shard) {
        return Status::invalid({file.string(), fmt::format("{} in {} without a word", name, shard),
                                "an index that names every tensor's file", ""});
      }
      out.tensors[name] = std::move(tensor);
    }
  }
  for (const auto& [name, shard] : *index) {
    if (out.tensors.contains(name)) continue;
    return Status::invalid({file.string(), fmt::format("{}, which {} does not have", name, shard),
                            "an index that names what its files have", ""});
  }
  return {};
}

Result<ModelFiles> open_hugging_face(const fs::path& folder, const fs::path& weights) {
  ModelFiles out;
  out.path = folder;
  out.layout = Layout::kHuggingFace;
  const fs::path file = folder / "config.json";
  const Result<std::string> config = read_file(file);
  if (!config.ok()) {
    return Status::invalid({folder.string(), "no config.json",
                            "config.json beside the weights: a model's sizes are not guessed",
                            "give the whole folder, as save_pretrained writes it"});
  }
  Result<ModelConfig> model = read_hugging_face_config(*config, file.string());
  if (!model.ok()) return model.status();
  out.model = *model;
  std::error_code ignored;
  if (fs::exists(folder / "tokenizer.json", ignored)) out.tokenizer = folder / "tokenizer.json";
  if (fs::exists(weights, ignored)) {
    out.path = weights;
    Result<MappedTensors> tensors = map_safetensors(weights, out.mapped.emplace_back());
    if (!tensors.ok()) return tensors.status();
    out.tensors = std::move(*tensors);
    return out;
  }
  if (!fs::exists(folder / kIndex, ignored)) return refuse_folder(folder);
  if (Status s = map_shards(folder, out); !s.ok()) return s;
  return out;
}

}  // namespace

bool is_hugging_face_folder(const fs::path& folder) {
  const Result<std::string> config = read_file(folder / "config.json");
  if (!config.ok()) return false;
  const auto json = base::read_json(*config);
  // One that is damaged is told as such, beside weights.
  std::error_code ignored;
  if (json.is_discarded()) {
    return fs::exists(folder / kWeights, ignored) || fs::exists(folder / kIndex, ignored);
  }
  return json.is_object() && json.contains("model_type");
}

Result<ModelFiles> open_foreign_model(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return open_hugging_face(path, path / kWeights);
  if (path.extension() == ".safetensors") return open_hugging_face(folder_of(path), path);
  Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  const std::string_view bytes = file->bytes();
  if (bytes.starts_with("GGUF")) return refuse_gguf(path);
  // A zip archive, or a pickle of protocol 2 and later.
  if (bytes.starts_with("PK\x03\x04") || bytes.starts_with("\x80")) return refuse_torch(path);
  if (!is_llmc(bytes)) {
    return Status::invalid({path.string(), "no weights",
                            "a folder of Hugging Face, .safetensors, or llm.c's .bin", ""});
  }
  Result<LlmcModel> read = map_llmc(path, bytes);
  if (!read.ok()) return read.status();
  ModelFiles out;
  out.path = path;
  out.layout = Layout::kLlmc;
  out.model = read->model;
  out.tensors = std::move(read->tensors);
  out.mapped.push_back(std::move(*file));
  return out;
}

}  // namespace flashlab::train
