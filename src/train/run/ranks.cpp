#include "train/run/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace flashlab::train {
namespace {

// A Status as all ranks exchange it; longer words are cut.
struct SentStatus {
  int code = 0;
  std::array<std::array<char, 512>, 4> words{};
};

SentStatus sent(const Status& status) {
  SentStatus out;
  out.code = static_cast<int>(status.code());
  const ErrorDetail& detail = status.detail();
  const std::string* words[] = {&detail.argument, &detail.got, &detail.expected, &detail.remedy};
  for (std::size_t i = 0; i < out.words.size(); ++i) {
    const std::size_t count = std::min(words[i]->size(), out.words[i].size() - 1);
    std::copy_n(words[i]->begin(), count, out.words[i].begin());
  }
  return out;
}

Status received(const SentStatus& from) {
  const auto word = [&](std::size_t i) { return std::string(from.words[i].data()); };
  return {static_cast<StatusCode>(from.code), {word(0), word(1), word(2), word(3)}};
}

}  // namespace

Result<std::vector<std::byte>> Ranks::gather(const void* own, std::size_t bytes,
                                             const char* name) const {
  std::vector<std::byte> out(bytes * static_cast<std::size_t>(size()));
  if (group == nullptr) {
    std::memcpy(out.data(), own, bytes);
    return out;
  }
  if (Status s = group->all_gather(own, out.data(), bytes, name); !s.ok()) return s;
  return out;
}

Status Ranks::agree(const Status& own) const {
  if (group == nullptr) return own;
  const SentStatus mine = sent(own);
  const Result<std::vector<std::byte>> all = gather(&mine, sizeof mine, "how ranks fare");
  if (!all.ok()) return all.status();
  for (int rank = 0; rank < size(); ++rank) {
    SentStatus theirs;
    std::memcpy(&theirs, all->data() + static_cast<std::size_t>(rank) * sizeof theirs,
                sizeof theirs);
    if (theirs.code == static_cast<int>(StatusCode::kOk)) continue;
    Status out = received(theirs);
    if (rank == 0) return out;
    ErrorDetail detail = out.detail();
    detail.argument = fmt::format("rank {}: {}", rank, detail.argument);
    return {out.code(), std::move(detail)};
  }
  return {};
}

Status Ranks::tell(std::string& text) const {
  if (group == nullptr) return {};
  std::uint64_t length = text.size();
  if (Status s = group->broadcast(&length, sizeof length, 0, "a length"); !s.ok()) return s;
  text.resize(length);
  if (length == 0) return {};
  return group->broadcast(text.data(), text.size(), 0, "a name");
}

Result<bool> Ranks::any(bool own) const {
  const std::uint64_t mine = own ? 1 : 0;
  const Result<std::vector<std::byte>> all = gather(&mine, sizeof mine, "whether to stop");
  if (!all.ok()) return all.status();
  return std::ranges::any_of(*all, [](std::byte each) { return each != std::byte{0}; });
}

Result<std::uint64_t> Ranks::sum(std::uint64_t own) const {
  const Result<std::vector<std::byte>> all = gather(&own, sizeof own, "digests of files");
  if (!all.ok()) return all.status();
  std::uint64_t out = 0;
  for (std::size_t at = 0; at < all->size(); at += sizeof out) {
    std::uint64_t each;
    std::memcpy(&each, all->data() + at, sizeof each);
    out += each;
  }
  return out;
}

ReadElements whole_elements(const Ranks& ranks, const ParameterStore& store) {
  return [ranks, &store](StoreArena arena, std::int64_t begin, std::int64_t end, std::byte* to) {
    const auto size = static_cast<std::size_t>(size_of(store.element()));
    if (ranks.group == nullptr || store.is_whole(arena)) {
      const auto first = static_cast<std::size_t>(begin) * size;
      std::memcpy(to, store.data(arena) + first, static_cast<std::size_t>(end - begin) * size);
      return Status();
    }
    // From one owner after the other.
    for (int rank = 0; rank < ranks.size(); ++rank) {
      for (const OwnedRange& own : store.owned()) {
        const std::int64_t shift = (rank - ranks.rank()) * (own.end - own.begin);
        const std::int64_t first = std::max(begin, own.begin + shift);
        const std::int64_t last = std::min(end, own.end + shift);
        if (first >= last) continue;
        std::byte* at = to + static_cast<std::size_t>(first - begin) * size;
        const std::size_t bytes = static_cast<std::size_t>(last - first) * size;
        if (rank == ranks.rank()) {
          const std::int64_t here = own.local + first - own.begin;
          std::memcpy(at, store.data(arena) + static_cast<std::size_t>(here) * size, bytes);
        }
        if (Status s = ranks.group->broadcast(at, bytes, rank, "a rank's part of a tensor");
            !s.ok()) {
          return s;
        }
      }
    }
    return Status();
  };
}

std::uint64_t digest_of(const void* data, std::size_t bytes, std::uint64_t seed) {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  std::uint64_t out = 0xcbf29ce484222325 ^ seed;
  const auto* at = static_cast<const unsigned char*>(data);
  for (; bytes > 0;) {
    std::uint64_t word = 0;
    const std::size_t count = std::min<std::size_t>(bytes, sizeof word);
    std::memcpy(&word, at, count);
    out = (out ^ word) * kPrime;
    out ^= out >> 29;
    at += count;
    bytes -= count;
  }
  return out;
}

Status check_same(const Ranks& ranks, const std::vector<SameField>& fields) {
  if (ranks.group == nullptr) return {};
  std::vector<std::uint64_t> own;
  for (const SameField& field : fields) own.push_back(field.digest);
  const std::size_t bytes = own.size() * sizeof(std::uint64_t);
  const Result<std::vector<std::byte>> all = ranks.gather(own.data(), bytes, "digests");
  if (!all.ok()) return all.status();
  const auto digest = [&](int rank, std::size_t field) {
    std::uint64_t out = 0;
    const std::size_t at = static_cast<std::size_t>(rank) * own.size() + field;
    std::memcpy(&out, all->data() + at * sizeof out, sizeof out);
    return out;
  };
  for (int rank = 1; rank < ranks.size(); ++rank) {
    for (std::size_t field = 0; field < fields.size(); ++field) {
      if (digest(rank, field) == digest(0, field)) continue;
      return Status::invalid(
          {fmt::format("rank {}", rank),
           fmt::format("{} with digest {:016x}", fields[field].name, digest(rank, field)),
           fmt::format("rank 0's, {:016x}", digest(0, field)),
           "start all ranks with the same program, flags and files"});
    }
  }
  return {};
}

}  // namespace flashlab::train
