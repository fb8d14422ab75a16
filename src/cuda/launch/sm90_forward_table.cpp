#include "cuda/launch/sm90_forward_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "flashlab/version.h"
#include "runtime/cuda/device.h"

namespace flashlab::cuda {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxTableBytes = std::int64_t{4} << 20;
constexpr const char* kRemedy = "run flashlab tune again, or set FLASHLAB_TUNING=off";

Status refused(StatusCode code, const std::string& path, std::string got, std::string expected,
               std::string remedy = kRemedy) {
  return {code, {"tuning table " + path, std::move(got), std::move(expected), std::move(remedy)}};
}

/// Takes members out of an object; remembers the first that is not as it should be.
struct Members {
  const Json& object;
  std::string where;  ///< "row 2, call: "
  std::string& wrong;

  using Is = bool (Json::*)() const noexcept;
  const Json* take(const char* name, Is right) const {
    const auto found = object.find(name);
    if (found != object.end() && ((*found).*right)()) return &*found;
    if (wrong.empty()) {
      wrong = fmt::format("{}\"{}\" {}", where, name,
                          found == object.end() ? "is missing" : "has another type");
    }
    return nullptr;
  }
  Members object_of(const char* name, std::string place) const {
    static const Json kEmpty;
    const Json* found = take(name, &Json::is_object);
    return {found != nullptr ? *found : kEmpty, std::move(place), wrong};
  }
  void read(const char* name, std::string& out) const {
    if (const Json* found = take(name, &Json::is_string)) out = found->get<std::string>();
  }
  void read(const char* name, bool& out) const {
    if (const Json* found = take(name, &Json::is_boolean)) out = found->get<bool>();
  }
  void read(const char* name, double& out) const {
    if (const Json* found = take(name, &Json::is_number)) out = found->get<double>();
  }
  template <class Integer>
  void read_whole(const char* name, Integer& out) const {
    double number = 0;
    read(name, number);
    if (wrong.empty() && (number != std::floor(number) || number < 0 || number > INT32_MAX)) {
      wrong = fmt::format("{}\"{}\" is {}, no size", where, name, number);
    }
    if (wrong.empty()) out = static_cast<Integer>(number);
  }
};

Sm90ForwardRow row_of(const Members& row, const std::string& where) {
  Sm90ForwardRow out;
  const Members call = row.object_of("call", where + "call: ");
  call.read("dtype", out.call.dtype);
  call.read("bounds", out.call.bounds);
  call.read("scores", out.call.scores);
  call.read_whole("head_dim", out.call.head_dim);
  call.read_whole("head_dim_v", out.call.head_dim_v);
  call.read_whole("group", out.call.group);
  call.read_whole("heads", out.call.heads);
  call.read_whole("seqlen_q", out.call.seqlen_q);
  call.read_whole("seqlen_k", out.call.seqlen_k);
  const Members tiling = row.object_of("tiling", where + "tiling: ");
  tiling.read_whole("consumers", out.tiling.consumers);
  tiling.read_whole("block_keys", out.tiling.block_keys);
  tiling.read_whole("stages_q", out.tiling.stages_q);
  tiling.read_whole("stages_k", out.tiling.stages_k);
  tiling.read_whole("stages_v", out.tiling.stages_v);
  tiling.read("turns", out.tiling.turns);
  row.read("median_ms", out.median_ms);
  row.object_of("rule", where + "rule: ").read("median_ms", out.rule_ms);
  return out;
}

int size_class(std::int64_t n) {
  return n > 0 ? std::bit_width(static_cast<std::uint64_t>(n - 1)) : 0;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// A regular file that only its owner may write to; 0 or errno, and what else is wrong.
int read_file(const std::string& path, bool own, std::string& text, std::string& wrong) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return errno;
  struct stat info {};
  int error = ::fstat(file, &info) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(info.st_mode)) wrong = "no regular file";
  if (error == 0 && own && info.st_uid != ::geteuid()) {
    wrong = fmt::format("a file of user {}", info.st_uid);
  }
  if (error == 0 && (info.st_mode & 0022) != 0) wrong = "a file that others may write to";
  if (error == 0 && info.st_size > kMaxTableBytes) wrong = "more than 4 MiB";
  if (error == 0 && wrong.empty()) text.resize(static_cast<std::size_t>(info.st_size));
  for (std::size_t done = 0; error == 0 && done < text.size();) {
    const ssize_t got = ::read(file, text.data() + done, text.size() - done);
    if (got < 0 && errno != EINTR) error = errno;
    if (got == 0) text.resize(done);
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  ::close(file);
  return error;
}

Sm90ForwardTable find_users_table() {
  const std::string named = variable("FLASHLAB_TUNING");
  const std::string path = named.empty() ? default_tuning_path() : named;
  Sm90ForwardTable none;
  if (path.empty() || named == "off") return none;
  if (named.empty() && ::access(path.c_str(), F_OK) != 0) return none;
  Result<Sm90ForwardTable> table = read_sm90_forward_table(path, named.empty());
  if (table.ok()) return std::move(*table);
  none.path = path;
  none.status = table.status();
  return none;
}

}  // namespace

bool same_class(const Sm90ForwardCall& a, const Sm90ForwardCall& b) {
  return a.dtype == b.dtype && a.bounds == b.bounds && a.scores == b.scores &&
         a.head_dim == b.head_dim && a.head_dim_v == b.head_dim_v && a.group == b.group &&
         size_class(a.heads) == size_class(b.heads) &&
         size_class(a.seqlen_q) == size_class(b.seqlen_q) &&
         size_class(a.seqlen_k) == size_class(b.seqlen_k);
}

Result<Sm90ForwardTable> parse_sm90_forward_table(std::string_view text, const std::string& path) {
  const auto damaged = [&](std::string got, std::string expected) {
    return refused(StatusCode::kInvalidArgument, path, std::move(got), std::move(expected));
  };
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return damaged("no JSON", "a whole table");
  std::string wrong, schema, made_by;
  Sm90ForwardTable table;
  table.path = path;
  const Members file{json, "", wrong};
  file.read("schema", schema);
  if (!wrong.empty() || schema != kTuningSchema) {
    return damaged(wrong.empty() ? "schema \"" + schema + "\"" : wrong,
                   fmt::format("schema \"{}\"", kTuningSchema));
  }
  file.read("version", made_by);
  file.read("gpu", table.gpu);
  file.read("driver", table.driver);
  file.read("date", table.date);
  file.read("commit", table.commit);
  if (const Json* rows = file.take("rows", &Json::is_array)) {
    for (const Json& row : *rows) {
      const std::string where = fmt::format("row {}, ", table.rows.size() + 1);
      table.rows.push_back(row_of({row, where, wrong}, where));
    }
  }
  if (!wrong.empty()) return damaged(wrong, "a whole table");
  if (made_by != version()) {
    return damaged(fmt::format("one of FlashLab {}", made_by), fmt::format("of {}", version()));
  }
  return table;
}

Result<Sm90ForwardTable> read_sm90_forward_table(const std::string& path, bool own) {
  std::string text, wrong;
  if (const int error = read_file(path, own, text, wrong); error != 0) {
    return refused(StatusCode::kIoError, path, std::strerror(error), "a file that can be read");
  }
  if (!wrong.empty()) {
    return refused(StatusCode::kIoError, path, wrong, "a file that only its owner may write to",
                   "chmod go-w " + path + ", or set FLASHLAB_TUNING=off");
  }
  return parse_sm90_forward_table(text, path);
}

std::string default_tuning_path() {
  std::string folder = variable("XDG_CACHE_HOME");
  if (folder.empty() && !variable("HOME").empty()) folder = variable("HOME") + "/.cache";
  return folder.empty() ? "" : folder + "/flashlab/tuning/sm90-forward.json";
}

const Sm90ForwardTable* users_sm90_forward_table(const GpuDevice& gpu) {
  if (gpu.is_described()) return nullptr;
  static const Sm90ForwardTable table = find_users_table();
  return table.path.empty() ? nullptr : &table;
}

Status check_table(const Sm90ForwardTable& table, const DeviceInfo& device) {
  if (!table.status.ok() || table.gpu == device.name) return table.status;
  return refused(StatusCode::kInvalidArgument, table.path, "figures of " + table.gpu, device.name);
}

Sm90TableAnswer ask(const Sm90ForwardTable& table, const DeviceInfo& device,
                    const Sm90ForwardCall& call, const Sm90ForwardNeeds& needs) {
  Sm90TableAnswer answer;
  if (const Status status = check_table(table, device); !status.ok()) {
    answer.reason = fmt::format("the rule's tiling: {}", status.message());
    return answer;
  }
  const auto row = std::find_if(table.rows.begin(), table.rows.end(),
                                [&](const auto& each) { return same_class(each.call, call); });
  if (row == table.rows.end()) return answer;
  const auto number = row - table.rows.begin() + 1;
  const auto legal = legal_sm90_forward_tilings(needs, device.shared_bytes_per_block);
  if (std::find(legal.begin(), legal.end(), row->tiling) == legal.end()) {
    answer.reason = fmt::format(
        "the rule's tiling: row {} of tuning table {} is none that fits registers and shared "
        "memory; {}",
        number, table.path, kRemedy);
    return answer;
  }
  answer.tiling = row->tiling;
  answer.reason = fmt::format(
      "the tiling of row {} of tuning table {} ({}, driver {}, commit {}): {:.4g} ms there, the "
      "rule's {:.4g} ms",
      number, table.path, table.date.substr(0, 10), table.driver, table.commit, row->median_ms,
      row->rule_ms);
  return answer;
}

}  // namespace flashlab::cuda
