#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "lab/data/tensor_file/formats.h"
#include "lab/data/tensor_file/zip.h"

namespace flashlab::lab {
namespace {

constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint64_t kLocalBytes = 30;
constexpr std::size_t kChunkBytes = 1 << 16;
// zlib counts in 32 bits.
constexpr std::size_t kMaxPieceBytes = std::size_t{1} << 30;

}  // namespace

struct ZipStream::State {
  explicit State(const ByteSource& from, const ZipMember& of) : source(from), member(of) {}
  ~State() {
    if (inflating) inflateEnd(&stream);
  }

  Status wrong(std::string got, std::string expected) const {
    return malformed(fmt::format("{}: {}", source.name(), base::excerpt(member.name)),
                     std::move(got), std::move(expected),
                     "the file is truncated or damaged: copy or write it again");
  }

  // More compressed bytes into `chunk`; none left: available stays 0.
  Status refill() {
    const std::size_t count =
        static_cast<std::size_t>(std::min<std::uint64_t>(compressed_left, chunk.size()));
    if (Status s = source.read(offset, std::span(chunk).first(count)); !s.ok()) return s;
    offset += count;
    compressed_left -= count;
    stream.next_in = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_in = static_cast<uInt>(count);
    return {};
  }

  // Decompresses exactly out.size() bytes.
  Status inflate_into(std::span<std::byte> out) {
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    while (stream.avail_out > 0) {
      if (stream.avail_in == 0) {
        if (Status s = refill(); !s.ok()) return s;
      }
      const int code = inflate(&stream, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        ended = true;
        break;
      }
      if (code != Z_OK) return wrong("compressed data that zlib refuses", "deflated data");
      if (stream.avail_in == 0 && compressed_left == 0 && stream.avail_out > 0) break;
    }
    if (stream.avail_out > 0) {
      return wrong(fmt::format("{} bytes", produced + out.size() - stream.avail_out),
                   fmt::format("{}, as the directory says", member.bytes));
    }
    return {};
  }

  const ByteSource& source;
  const ZipMember member;
  std::uint64_t offset = 0;           // next compressed byte in the file
  std::uint64_t compressed_left = 0;  // not yet read from the file
  std::uint64_t produced = 0;
  uLong crc = crc32(0, nullptr, 0);
  std::array<std::byte, kChunkBytes> chunk;
  z_stream stream{};
  bool inflating = false;
  bool ended = false;
};

ZipStream::ZipStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
ZipStream::~ZipStream() = default;

Result<std::unique_ptr<ZipStream>> ZipStream::open(const ByteSource& source,
                                                   const ZipMember& member) {
  auto state = std::make_unique<State>(source, member);
  if (member.encrypted) return state->wrong("an encrypted member", "a plain one");
  if (member.method != 0 && member.method != 8) {
    return state->wrong(fmt::format("compression method {}", member.method),
                        "0 (stored) or 8 (deflated)");
  }
  std::byte local[kLocalBytes];
  if (source.size() < kLocalBytes || member.header_offset > source.size() - kLocalBytes) {
    return state->wrong("a member beyond the file's end", "one inside it");
  }
  if (Status s = source.read(member.header_offset, local); !s.ok()) return s;
  if (load_le(local, 4) != kLocalSignature) {
    return state->wrong("no local header where the directory points", "one");
  }
  state->offset =
      member.header_offset + kLocalBytes + load_le(local + 26, 2) + load_le(local + 28, 2);
  state->compressed_left = member.compressed_bytes;
  if (state->offset > source.size() || member.compressed_bytes > source.size() - state->offset) {
    return state->wrong("a member that reaches beyond the file's end", "one inside it");
  }
  if (member.method == 0 && member.compressed_bytes != member.bytes) {
    return state->wrong(fmt::format("{} bytes stored as {}", member.bytes, member.compressed_bytes),
                        "equal sizes of a stored member");
  }
  if (member.method == 8) {
    // Deflate cannot do better than 1032 : 1: a larger size is a lie told to take memory.
    if (member.bytes / 1032 > member.compressed_bytes) {
      return state->wrong(
          fmt::format("{} bytes from {} compressed", member.bytes, member.compressed_bytes),
          "at most 1032 times as many, deflate's limit");
    }
    if (inflateInit2(&state->stream, -MAX_WBITS) != Z_OK) {
      return Status::out_of_memory({.argument = source.name(),
                                    .got = "no memory for zlib",
                                    .expected = "some 50 KiB",
                                    .remedy = "end other programs"});
    }
    state->inflating = true;
  }
  return std::unique_ptr<ZipStream>(new ZipStream(std::move(state)));
}

Status ZipStream::read(std::span<std::byte> out) {
  State& state = *state_;
  if (out.size() > state.member.bytes - state.produced) {
    return state.wrong(fmt::format("{} bytes", state.member.bytes),
                       fmt::format("at least {}", state.produced + out.size()));
  }
  while (!out.empty()) {
    const std::span<std::byte> piece = out.first(std::min(out.size(), kMaxPieceBytes));
    if (state.inflating) {
      if (Status s = state.inflate_into(piece); !s.ok()) return s;
    } else {
      if (Status s = state.source.read(state.offset, piece); !s.ok()) return s;
      state.offset += piece.size();
    }
    state.crc = crc32(state.crc, reinterpret_cast<const Bytef*>(piece.data()),
                      static_cast<uInt>(piece.size()));
    state.produced += piece.size();
    out = out.subspan(piece.size());
  }
  return {};
}

Status ZipStream::finish() {
  State& state = *state_;
  if (state.produced != state.member.bytes) {
    return state.wrong(fmt::format("{} bytes", state.member.bytes),
                       fmt::format("{}, as the array's header says", state.produced));
  }
  if (state.inflating && !state.ended) {
    // The end marker may still stand in the compressed data, but no further byte.
    std::byte extra[1];
    state.stream.next_out = reinterpret_cast<Bytef*>(extra);
    state.stream.avail_out = 1;
    int code = Z_OK;
    while (code == Z_OK && state.stream.avail_out == 1) {
      if (state.stream.avail_in == 0) {
        if (state.compressed_left == 0) break;
        if (Status s = state.refill(); !s.ok()) return s;
      }
      code = inflate(&state.stream, Z_NO_FLUSH);
    }
    if (code != Z_STREAM_END || state.stream.avail_out == 0) {
      return state.wrong("compressed data that goes on, or has no end",
                         fmt::format("{} bytes, as the directory says", state.member.bytes));
    }
  }
  if (static_cast<std::uint32_t>(state.crc) != state.member.crc) {
    return state.wrong(fmt::format("checksum {:08x}", static_cast<std::uint32_t>(state.crc)),
                       fmt::format("{:08x}", state.member.crc));
  }
  return {};
}

}  // namespace flashlab::lab
