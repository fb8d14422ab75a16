#include "lab/data/tensor_file/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace flashlab::lab {
namespace {

Status io_error(const std::string& name, std::string got, std::string remedy) {
  return {StatusCode::kIoError,
          {.argument = name, .got = std::move(got), .expected = "", .remedy = std::move(remedy)}};
}

std::string system_reason(int code) {
  return std::generic_category().message(code);
}

class FileSource final : public ByteSource {
 public:
  FileSource(int descriptor, std::uint64_t size, std::string name)
      : descriptor_(descriptor), size_(size), name_(std::move(name)) {}
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override { ::close(descriptor_); }

  std::uint64_t size() const noexcept override { return size_; }
  const std::string& name() const noexcept override { return name_; }

  Status read(std::uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const ssize_t count =
          ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return io_error(name_, system_reason(errno), "check the file's disk");
      if (count == 0) {
        return io_error(name_, fmt::format("the file ended at byte {} while it was read", offset),
                        "let no program write it meanwhile");
      }
      offset += static_cast<std::uint64_t>(count);
      out = out.subspan(static_cast<std::size_t>(count));
    }
    return {};
  }

 private:
  int descriptor_;
  std::uint64_t size_;
  std::string name_;
};

class MemorySource final : public ByteSource {
 public:
  MemorySource(std::span<const std::byte> bytes, std::string name)
      : bytes_(bytes), name_(std::move(name)) {}

  std::uint64_t size() const noexcept override { return bytes_.size(); }
  const std::string& name() const noexcept override { return name_; }

  Status read(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
      return io_error(name_, fmt::format("the bytes end at {}", bytes_.size()), "");
    }
    std::copy_n(bytes_.data() + offset, out.size(), out.data());
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> open_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  // O_NONBLOCK: opening a pipe that nobody writes would otherwise wait for ever.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return Status{StatusCode::kIoError,
                  {name, system_reason(errno), "a .safetensors or .npz file that can be read",
                   "check its name and permissions"}};
  }
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return io_error(name, S_ISDIR(info.st_mode) ? "a folder" : "no regular file",
                    "give a .safetensors or .npz file");
  }
  return std::unique_ptr<ByteSource>(
      new FileSource(descriptor, static_cast<std::uint64_t>(info.st_size), name));
}

std::unique_ptr<ByteSource> view_bytes(std::span<const std::byte> bytes, std::string name) {
  return std::make_unique<MemorySource>(bytes, std::move(name));
}

}  // namespace flashlab::lab
