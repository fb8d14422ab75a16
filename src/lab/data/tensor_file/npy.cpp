// The head of an .npy file: magic, version, the text of a Python dictionary.
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

#include <fmt/format.h>

#include <limits>

#include "base/text.h"
#include "lab/data/tensor_file/formats.h"

namespace flashlab::lab {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// A reader of the few Python literals that NumPy writes: strings, True, False, tuples of integers.
class Literal {
 public:
  explicit Literal(std::string_view text) : text_(text) {}

  bool at_end() {
    skip_space();
    return text_.empty();
  }
  bool take(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  std::optional<std::string> string() {
    skip_space();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) return std::nullopt;
    const std::size_t end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos) return std::nullopt;
    std::string out(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    // No key or type that NumPy writes has an escape: one would only hide something.
    if (out.find('\\') != std::string::npos) return std::nullopt;
    return out;
  }
  std::optional<bool> boolean() {
    skip_space();
    for (const auto& [word, value] :
         {std::pair{std::string_view("True"), true}, std::pair{std::string_view("False"), false}}) {
      if (text_.substr(0, word.size()) == word) {
        text_.remove_prefix(word.size());
        return value;
      }
    }
    return std::nullopt;
  }
  std::optional<std::int64_t> natural() {
    skip_space();
    std::int64_t value = 0;
    std::size_t digits = 0;
    while (digits < text_.size() && text_[digits] >= '0' && text_[digits] <= '9') {
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_add_overflow(value, text_[digits] - '0', &value)) {
        return std::nullopt;
      }
      ++digits;
    }
    if (digits == 0) return std::nullopt;
    text_.remove_prefix(digits);
    if (!text_.empty() && text_.front() == 'L') text_.remove_prefix(1);  // Python 2 wrote 3L
    return value;
  }
  std::optional<std::vector<std::int64_t>> tuple() {
    if (!take('(')) return std::nullopt;
    std::vector<std::int64_t> out;
    while (!take(')')) {
      const std::optional<std::int64_t> value = natural();
      if (!value) return std::nullopt;
      out.push_back(*value);
      if (!take(',')) {
        if (!take(')')) return std::nullopt;
        break;
      }
    }
    return out;
  }

 private:
  void skip_space() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n')) {
      text_.remove_prefix(1);
    }
  }
  std::string_view text_;
};

struct Dictionary {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

// False when the text is no such dictionary. A structured type's descr is a list: it stays empty.
bool parse_dictionary(std::string_view text, Dictionary& out) {
  Literal literal(text);
  if (!literal.take('{')) return false;
  while (!literal.take('}')) {
    const std::optional<std::string> key = literal.string();
    if (!key || !literal.take(':')) return false;
    if (*key == "descr" && !out.descr) {
      out.descr = literal.string();
      if (!out.descr) return false;
    } else if (*key == "fortran_order" && !out.fortran_order) {
      out.fortran_order = literal.boolean();
      if (!out.fortran_order) return false;
    } else if (*key == "shape" && !out.shape) {
      out.shape = literal.tuple();
      if (!out.shape) return false;
    } else {
      return false;
    }
    if (!literal.take(',')) {
      if (!literal.take('}')) return false;
      break;
    }
  }
  return literal.at_end() && out.descr && out.fortran_order && out.shape;
}

}  // namespace

Result<NpyHeader> parse_npy_header(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < 10 || text.substr(0, kMagic.size()) != kMagic) {
    return malformed(name, base::excerpt(text.substr(0, 8)), "an .npy array (\\x93NUMPY...)",
                     "write the file by numpy.savez");
  }
  const int major = std::to_integer<int>(bytes[6]);
  if (major < 1 || major > 3) {
    return malformed(name + ": version", fmt::format("{}", major), "1, 2 or 3",
                     "write the file by a current NumPy");
  }
  const std::uint64_t length_bytes = major == 1 ? 2 : 4;
  const std::uint64_t begin = 8 + length_bytes;
  const std::uint64_t length =
      text.size() < begin ? 0 : load_le(bytes.data() + 8, static_cast<int>(length_bytes));
  if (text.size() < begin || length > text.size() - begin) {
    return malformed(
        name + ": header length", fmt::format("{}", length),
        fmt::format("at most {}, what is there", text.size() < begin ? 0 : text.size() - begin),
        "the array is truncated or damaged: write the file again");
  }
  Dictionary dictionary;
  const std::string_view header = text.substr(begin, length);
  if (!parse_dictionary(header, dictionary)) {
    return malformed(name + ": header", base::excerpt(header),
                     "a dictionary of descr (one type), fortran_order, shape",
                     "write the file by numpy.savez");
  }

  NpyHeader out;
  const std::string& descr = *dictionary.descr;
  if (descr == "<f8") {
    out.dtype = DType::kFp64;
  } else if (descr == "<f4") {
    out.dtype = DType::kFp32;
  } else if (descr == "<f2") {
    out.dtype = DType::kFp16;
  } else {
    const bool big_endian = !descr.empty() && descr.front() == '>';
    return malformed(name + ": descr", base::excerpt(descr), "\"<f8\", \"<f4\" or \"<f2\"",
                     big_endian
                         ? "store it little-endian: array.astype(array.dtype.newbyteorder('<'))"
                         : "convert it by array.astype('float32'); bf16 needs .safetensors");
  }
  out.fortran_order = *dictionary.fortran_order;
  out.shape = std::move(*dictionary.shape);
  if (!checked_bytes(out.shape, out.dtype)) {
    return malformed(name + ": shape", base::excerpt(header), "a size that fits in 62 bits",
                     "write the file again");
  }
  out.data_offset = begin + length;
  return out;
}

}  // namespace flashlab::lab
