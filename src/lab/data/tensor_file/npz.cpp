// An .npz file: a zip of .npy arrays, one per name.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "lab/data/tensor_file/formats.h"
#include "lab/data/tensor_file/zip.h"

namespace flashlab::lab {
namespace {

constexpr std::string_view kSuffix = ".npy";

// "q" of "q.npy".
std::string array_name(const ZipMember& member) {
  const std::string& name = member.name;
  if (name.size() > kSuffix.size() && name.ends_with(kSuffix)) {
    return name.substr(0, name.size() - kSuffix.size());
  }
  return name;
}

class Npz final : public TensorContainer {
 public:
  Npz(const ByteSource& source, std::vector<ZipMember> members)
      : source_(source), members_(std::move(members)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const ZipMember& member : members_) out.push_back(array_name(member));
    return out;
  }

  Result<FileTensor> load(std::string_view name, std::int64_t max_bytes) const override {
    const auto member =
        std::ranges::find_if(members_, [&](const ZipMember& m) { return array_name(m) == name; });
    const std::string place = fmt::format("{}: {}", source_.name(), base::printable(member->name));
    Result<std::unique_ptr<ZipStream>> stream = ZipStream::open(source_, *member);
    if (!stream.ok()) return stream.status();
    Result<NpyHeader> header = read_header(**stream, *member, place);
    if (!header.ok()) return header.status();

    // The array's own head says its size; the zip's must agree before memory is taken.
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(*checked_bytes(header->shape, header->dtype));
    if (bytes != member->bytes - header->data_offset) {
      return malformed(place,
                       fmt::format("{} bytes of elements", member->bytes - header->data_offset),
                       fmt::format("{}, as descr and shape say", bytes), "write the file again");
    }
    Result<FileTensor> tensor = make_tensor(name, header->dtype, header->shape,
                                            header->fortran_order, max_bytes, source_.name());
    if (!tensor.ok()) return tensor.status();
    if (Status s = (*stream)->read({tensor->data.get(), bytes}); !s.ok()) return s;
    if (Status s = (*stream)->finish(); !s.ok()) return s;
    return tensor;
  }

 private:
  // Leaves the stream at the first element.
  static Result<NpyHeader> read_header(ZipStream& stream, const ZipMember& member,
                                       const std::string& place) {
    std::vector<std::byte> bytes(12);
    if (member.bytes < bytes.size()) {
      return malformed(place, fmt::format("{} bytes", member.bytes), "an .npy array",
                       "write the file by numpy.savez");
    }
    if (Status s = stream.read(bytes); !s.ok()) return s;
    // Versions 2 and 3 have a length of four bytes; the twelve read so far hold either.
    const bool short_length = bytes[6] == std::byte{1};
    const std::uint64_t end = (short_length ? 10 : 12) + load_le(&bytes[8], short_length ? 2 : 4);
    const std::uint64_t limit = std::min(member.bytes, kMaxNpyHeaderBytes);
    if (end > bytes.size() && end <= limit) {
      bytes.resize(end);
      if (Status s = stream.read(std::span(bytes).subspan(12)); !s.ok()) return s;
    }
    // A head shorter than the bytes already read is no head that NumPy wrote.
    if (end < 12) {
      return malformed(place, fmt::format("a head of {} bytes", end), "a dictionary",
                       "write the file by numpy.savez");
    }
    return parse_npy_header(bytes, place);
  }

  const ByteSource& source_;
  std::vector<ZipMember> members_;
};

}  // namespace

Result<std::unique_ptr<TensorContainer>> open_npz(const ByteSource& source) {
  Result<std::vector<ZipMember>> members = read_zip_directory(source);
  if (!members.ok()) return members.status();
  return std::unique_ptr<TensorContainer>(new Npz(source, std::move(*members)));
}

}  // namespace flashlab::lab
