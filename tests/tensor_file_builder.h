#pragma once

// Files in memory, right or wrong on purpose: .safetensors, .npy and .npz byte by byte.

#include <fmt/format.h>
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace flashlab::lab::tests {

inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string safetensors(const std::string& header, const std::string& data) {
  return little_endian(header.size(), 8) + header + data;
}

inline std::string npy(const std::string& dictionary, const std::string& data, int version = 1) {
  std::string padded = dictionary;
  const std::size_t prefix = version == 1 ? 10 : 12;
  while ((prefix + padded.size() + 1) % 64 != 0) padded += ' ';
  padded += '\n';
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' +
         little_endian(padded.size(), version == 1 ? 2 : 4) + padded + data;
}

inline std::string dictionary(const std::string& descr, const std::string& shape,
                              bool fortran_order = false) {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}", descr,
                     fortran_order ? "True" : "False", shape);
}

struct Member {
  std::string name;
  std::string contents;
  bool deflated = false;
  bool zip64 = false;
  bool data_descriptor = false;
  // What the directory says, when it lies.
  std::function<void(std::string& entry)> falsify;
};

inline std::string deflated(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// A zip archive. Offsets in a directory entry: 10 method, 16 crc, 20 compressed, 24 size, 42
// offset.
inline std::string zip(const std::vector<Member>& members, const std::string& comment = "") {
  std::string out;
  std::string directory;
  for (const Member& m : members) {
    const std::string packed = m.deflated ? deflated(m.contents) : m.contents;
    const auto crc =
        static_cast<std::uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(m.contents.data()),
                                         static_cast<uInt>(m.contents.size())));
    const std::uint64_t offset = out.size();
    const std::string method = little_endian(m.deflated ? 8 : 0, 2);
    const std::string flags = little_endian(m.data_descriptor ? 8 : 0, 2);
    const std::string extra = m.zip64 ? little_endian(1, 2) + little_endian(16, 2) +
                                            little_endian(m.contents.size(), 8) +
                                            little_endian(packed.size(), 8)
                                      : std::string();
    const std::string sums =
        little_endian(crc, 4) +
        (m.zip64 ? std::string(8, '\xff')
                 : little_endian(packed.size(), 4) + little_endian(m.contents.size(), 4));
    const std::string names = little_endian(m.name.size(), 2) + little_endian(extra.size(), 2);
    out += "PK\x03\x04" + little_endian(45, 2) + flags + method + little_endian(0, 4) +
           (m.data_descriptor ? std::string(12, '\0') : sums) + names + m.name + extra + packed;
    if (m.data_descriptor) out += "PK\x07\x08" + sums;
    std::string entry = "PK\x01\x02" + little_endian(45, 2) + little_endian(45, 2) + flags +
                        method + little_endian(0, 4) + sums + names + little_endian(0, 2) +
                        little_endian(0, 2) + little_endian(0, 2) + little_endian(0, 4) +
                        little_endian(offset, 4) + m.name + extra;
    if (m.falsify) m.falsify(entry);
    directory += entry;
  }
  const std::uint64_t begin = out.size();
  out += directory + "PK\x05\x06" + little_endian(0, 4) + little_endian(members.size(), 2) +
         little_endian(members.size(), 2) + little_endian(directory.size(), 4) +
         little_endian(begin, 4) + little_endian(comment.size(), 2) + comment;
  return out;
}

}  // namespace flashlab::lab::tests
