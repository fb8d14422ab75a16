#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/text.h"
#include "lab/data/tensor_file/formats.h"
#include "lab/data/tensor_file/zip.h"

namespace flashlab::lab {
namespace {

constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kZip64EndSignature = 0x06064b50;
constexpr std::uint32_t kZip64LocatorSignature = 0x07064b50;
constexpr std::uint32_t kEntrySignature = 0x02014b50;
constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kLocatorBytes = 20;
constexpr std::uint64_t kZip64EndBytes = 56;
constexpr std::uint64_t kEntryBytes = 46;
constexpr std::uint64_t kMaxCommentBytes = 65535;
// A file of attention inputs has a handful of members; this bounds the memory for a hostile one.
constexpr std::uint64_t kMaxDirectoryBytes = 64u << 20;
constexpr std::uint64_t kAbsent16 = 0xffff;
constexpr std::uint64_t kAbsent32 = 0xffffffff;

struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
  std::uint64_t end = 0;  // where what follows the directory begins
};

Status damaged(const ByteSource& source, std::string got, std::string expected) {
  return malformed(source.name() + ": zip directory", std::move(got), std::move(expected),
                   "the file is truncated or damaged: copy or write it again");
}

// The zip64 record, when the plain one has no room for its numbers.
Status read_zip64(const ByteSource& source, std::uint64_t end_offset, Directory& directory) {
  std::byte locator[kLocatorBytes];
  if (end_offset < kLocatorBytes) return damaged(source, "no zip64 locator", "one");
  if (Status s = source.read(end_offset - kLocatorBytes, locator); !s.ok()) return s;
  if (load_le(locator, 4) != kZip64LocatorSignature) {
    return damaged(source, "sizes of 0xffffffff without a zip64 locator", "a zip64 locator");
  }
  const std::uint64_t offset = load_le(locator + 8, 8);
  if (end_offset - kLocatorBytes < kZip64EndBytes ||
      offset > end_offset - kLocatorBytes - kZip64EndBytes) {
    return damaged(source, fmt::format("a zip64 record at byte {}", offset),
                   "one before its locator");
  }
  std::byte record[kZip64EndBytes];
  if (Status s = source.read(offset, record); !s.ok()) return s;
  if (load_le(record, 4) != kZip64EndSignature) {
    return damaged(source, "no zip64 record where its locator points", "one");
  }
  directory.entries = load_le(record + 32, 8);
  directory.bytes = load_le(record + 40, 8);
  directory.offset = load_le(record + 48, 8);
  directory.end = offset;
  return {};
}

Result<Directory> find_directory(const ByteSource& source) {
  if (source.size() < kEndBytes) {
    return damaged(source, fmt::format("{} bytes", source.size()), "at least 22");
  }
  const std::uint64_t tail_bytes = std::min(source.size(), kEndBytes + kMaxCommentBytes);
  std::vector<std::byte> tail(tail_bytes);
  const std::uint64_t tail_offset = source.size() - tail_bytes;
  if (Status s = source.read(tail_offset, tail); !s.ok()) return s;
  for (std::uint64_t at = tail_bytes - kEndBytes + 1; at-- > 0;) {
    const std::byte* end = tail.data() + at;
    // The comment's length must lead exactly to the end: a signature inside a comment does not.
    if (load_le(end, 4) != kEndSignature || load_le(end + 20, 2) != tail_bytes - at - kEndBytes) {
      continue;
    }
    if (load_le(end + 4, 2) != load_le(end + 6, 2)) {
      return damaged(source, "an archive of several disks", "one file");
    }
    Directory directory{load_le(end + 16, 4), load_le(end + 12, 4), load_le(end + 10, 2),
                        tail_offset + at};
    if (directory.offset == kAbsent32 || directory.bytes == kAbsent32 ||
        directory.entries == kAbsent16) {
      if (Status s = read_zip64(source, tail_offset + at, directory); !s.ok()) return s;
    }
    if (directory.bytes > kMaxDirectoryBytes || directory.offset > directory.end ||
        directory.bytes > directory.end - directory.offset) {
      return damaged(source, fmt::format("{} bytes at {}", directory.bytes, directory.offset),
                     fmt::format("a directory before byte {}", directory.end));
    }
    return directory;
  }
  return damaged(source, "no end-of-directory record", "one at the end of the file");
}

// Sizes and offset of an entry that do not fit in 32 bits stand in its extra field, in this order.
bool apply_zip64(std::span<const std::byte> extra, ZipMember& member) {
  std::uint64_t* const fields[] = {&member.bytes, &member.compressed_bytes, &member.header_offset};
  if (std::ranges::none_of(fields, [](const std::uint64_t* f) { return *f == kAbsent32; })) {
    return true;
  }
  while (extra.size() >= 4) {
    const std::uint64_t id = load_le(extra.data(), 2);
    const std::uint64_t size = load_le(extra.data() + 2, 2);
    if (size > extra.size() - 4) return false;
    if (id == 1) {
      std::span<const std::byte> values = extra.subspan(4, size);
      for (std::uint64_t* field : fields) {
        if (*field != kAbsent32) continue;
        if (values.size() < 8) return false;
        *field = load_le(values.data(), 8);
        values = values.subspan(8);
      }
      return true;
    }
    extra = extra.subspan(4 + size);
  }
  return false;
}

}  // namespace

Result<std::vector<ZipMember>> read_zip_directory(const ByteSource& source) {
  Result<Directory> directory = find_directory(source);
  if (!directory.ok()) return directory.status();
  std::vector<std::byte> bytes(directory->bytes);
  if (Status s = source.read(directory->offset, bytes); !s.ok()) return s;

  std::vector<ZipMember> members;
  std::set<std::string> names;
  std::span<const std::byte> rest(bytes);
  for (std::uint64_t i = 0; i < directory->entries; ++i) {
    const std::string place = fmt::format("entry {} of {}", i, directory->entries);
    if (rest.size() < kEntryBytes || load_le(rest.data(), 4) != kEntrySignature) {
      return damaged(source, place + " is missing", "as many entries as the file says");
    }
    const std::byte* entry = rest.data();
    const std::uint64_t name_bytes = load_le(entry + 28, 2);
    const std::uint64_t extra_bytes = load_le(entry + 30, 2);
    const std::uint64_t comment_bytes = load_le(entry + 32, 2);
    if (name_bytes + extra_bytes + comment_bytes > rest.size() - kEntryBytes) {
      return damaged(source, place + " is cut off", "whole entries");
    }
    ZipMember member;
    member.name.assign(reinterpret_cast<const char*>(entry + kEntryBytes), name_bytes);
    member.encrypted = (load_le(entry + 8, 2) & 1) != 0;
    member.method = static_cast<int>(load_le(entry + 10, 2));
    member.crc = static_cast<std::uint32_t>(load_le(entry + 16, 4));
    member.compressed_bytes = load_le(entry + 20, 4);
    member.bytes = load_le(entry + 24, 4);
    member.header_offset = load_le(entry + 42, 4);
    if (!apply_zip64(rest.subspan(kEntryBytes + name_bytes, extra_bytes), member)) {
      return damaged(source, place + " lacks its zip64 sizes", "a zip64 extra field");
    }
    if (member.header_offset >= directory->offset ||
        member.compressed_bytes > directory->offset - member.header_offset) {
      return damaged(source,
                     fmt::format("{}: {} bytes at {}", base::excerpt(member.name),
                                 member.compressed_bytes, member.header_offset),
                     fmt::format("members before byte {}", directory->offset));
    }
    if (!names.insert(member.name).second) {
      return damaged(source, fmt::format("the name {} twice", base::excerpt(member.name)),
                     "every name once");
    }
    members.push_back(std::move(member));
    rest = rest.subspan(kEntryBytes + name_bytes + extra_bytes + comment_bytes);
  }
  return members;
}

}  // namespace flashlab::lab
