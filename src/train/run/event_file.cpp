#include "train/run/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "train/data/files.h"

namespace flashlab::train {
namespace {

// Of `Event`: the number of a field times 8, and how its value is written.
constexpr char kWallTime = 1 << 3 | 1, kStep = 2 << 3, kFileVersion = 3 << 3 | 2,
               kSummary = 5 << 3 | 2, kSessionLog = 7 << 3 | 2;

void append_varint(std::uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <class T>
void append_raw(T value, std::string& out) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void append_field(char field, std::string_view content, std::string& out) {
  out += field;
  append_varint(content.size(), out);
  out += content;
}

// The checksum of TFRecord files: turned and moved, so that a checksum of checksums is none.
std::uint32_t masked(std::string_view bytes) {
  const std::uint32_t sum = crc32c(bytes);
  return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82f63b78u : 0);
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t sum = ~0u;
  for (const char byte : bytes) {
    sum = sum >> 8 ^ kTable[(sum ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~sum;
}

Result<EventFile> EventFile::create(const std::filesystem::path& folder, std::int64_t first_step) {
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  EventFile out;
  // TensorBoard reads the files of a folder in the order of their names.
  out.path_ = folder / fmt::format("events.out.tfevents.{:017.6f}.{}.{}", now.count(), host,
                                   static_cast<long>(getpid()));
  out.file_.open(out.path_, std::ios::binary | std::ios::app);
  if (Status s = out.write_event(0, kFileVersion, "brain.Event:2"); !s.ok()) return s;
  constexpr std::string_view kStart("\x08\x01", 2);  // SessionLog's status START
  if (first_step > 1) {
    if (Status s = out.write_event(first_step, kSessionLog, kStart); !s.ok()) return s;
  }
  return out;
}

Status EventFile::write_event(std::int64_t step, char field, std::string_view content) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event(1, kWallTime), record;
  append_raw(now.count(), event);
  event += kStep;
  append_varint(static_cast<std::uint64_t>(step), event);
  append_field(field, content, event);
  append_raw(static_cast<std::uint64_t>(event.size()), record);
  append_raw(masked(record), record);
  record += event;
  append_raw(masked(event), record);
  errno = 0;
  file_.write(record.data(), static_cast<std::streamsize>(record.size())).flush();
  return file_ ? Status() : io_error(path_, "written");
}

Status EventFile::write(std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    append_field(1 << 3 | 2, scalar.tag, value);
    value += static_cast<char>(2 << 3 | 5);
    append_raw(static_cast<float>(scalar.value), value);
    append_field(1 << 3 | 2, value, summary);
  }
  return write_event(step, kSummary, summary);
}

}  // namespace flashlab::train
