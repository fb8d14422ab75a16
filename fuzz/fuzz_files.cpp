// Files that people hand to the command line: .safetensors, .npz, .npy heads and results. Whatever
// the bytes say, a reader answers with tensors that are really there or with a message.
//
// The first byte chooses the reader, the rest is the file, or edits of a valid results file.
// tools/fuzz_seeds.py writes valid files to start from.

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "bytes.h"
#include "lab/data/tensor_file/byte_source.h"
#include "lab/data/tensor_file/formats.h"
#include "lab/data/tensor_file/tensor_file.h"
#include "lab/results/measurement.h"
#include "lab/results/results_json.h"
#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::fuzz {
namespace {

// No input is larger than this; a reader that takes more memory for one believed a lie.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 26;

void check_refusal(const Status& status) {
  if (status.code() == StatusCode::kInternal) {
    finding("an internal error", status.message().c_str());
  }
  if (status.message().size() < 10) finding("a refusal without a message");
  for (const char c : status.message()) {
    if (static_cast<unsigned char>(c) < 0x20) {
      finding("a control character in a message:", status.message().c_str());
    }
  }
}

// Reads every byte, so that a sanitizer sees memory that is not there or not initialised.
void use(const lab::FileTensor& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0) finding("a negative extent was accepted");
    elements *= extent;
  }
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(tensor.dtype);
  unsigned sum = 0;
  for (std::size_t i = 0; i < bytes; ++i) sum += std::to_integer<unsigned>(tensor.data[i]);
  volatile unsigned sink = sum;
  (void)sink;
}

template <class Open>
void read_container(Open open, std::span<const std::byte> file) {
  const auto source = lab::view_bytes(file, "input");
  const auto container = open(*source);
  if (!container.ok()) return check_refusal(container.status());
  for (const std::string& name : (*container)->names()) {
    const auto tensor = (*container)->load(name, kMaxBytes);
    if (tensor.ok()) {
      use(*tensor);
    } else {
      check_refusal(tensor.status());
    }
  }
}

void read_npy_header(std::span<const std::byte> file) {
  const auto header = lab::parse_npy_header(file, "input");
  if (!header.ok()) return check_refusal(header.status());
  if (header->data_offset > file.size()) finding("an .npy head longer than its file");
}

void read_results(std::span<const std::byte> file) {
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  const auto first = lab::parse_results(text);
  if (!first.ok()) return check_refusal(first.status());
  // What was read can be written and read again, and is then the same.
  const std::string written = lab::to_json(*first);
  const auto second = lab::parse_results(written);
  if (!second.ok()) finding("results do not survive writing", second.status().message().c_str());
  if (lab::to_json(*second) != written) finding("results change when written and read again");
}

// A valid results file with a few places changed, which reaches deeper than bytes from nowhere.
void read_edited_results(std::span<const std::byte> edits) {
  static const std::string valid = [] {
    lab::ResultFile file;
    file.environment.commit = "0123456789ab";
    file.environment.warnings.push_back({"another program is busy", "stop it"});
    for (const auto status : {lab::RunStatus::kOk, lab::RunStatus::kOutOfMemory}) {
      lab::Measurement result;
      result.labels = lab::labels_of({});
      result.implementation = "naive";
      result.device = "cpu";
      result.pass = "forward";
      result.status = status;
      result.samples = 3;
      result[lab::kMedianMs] = 1.5;
      result[lab::kPeakBytes] = 1 << 20;
      result.parts.push_back({"scores", 0.5});
      file.results.push_back(result);
    }
    return lab::to_json(file);
  }();
  std::string text = valid;
  Bytes bytes(reinterpret_cast<const std::uint8_t*>(edits.data()), edits.size());
  for (int left = bytes.range(0, 3); left >= 0; --left) {
    const std::size_t at = bytes.raw<std::uint16_t>() % text.size();
    const char replacement = static_cast<char>(bytes.byte());
    switch (bytes.range(0, 2)) {
      case 0:
        text[at] = replacement;
        break;
      case 1:
        text.insert(text.begin() + static_cast<std::ptrdiff_t>(at), replacement);
        break;
      default:
        text.erase(at, 1);
    }
  }
  if (bytes.one_in(8)) text.resize(bytes.raw<std::uint16_t>() % text.size());
  read_results(std::as_bytes(std::span(text)));
}

void read_inputs(std::span<const std::byte> file) {
  const auto inputs = lab::parse_attention_inputs(file, "input", {.max_bytes = kMaxBytes});
  if (!inputs.ok()) return check_refusal(inputs.status());
  for (const lab::FileTensor& tensor : inputs->tensors) use(tensor);
  for (const ConstTensor& view : {inputs->q, inputs->k, inputs->v}) {
    if (view.spec.rank != 4) finding("an input that is not 4-D was accepted");
  }
}

}  // namespace

void read_as(int format, std::span<const std::byte> file) {
  switch (format % 6) {
    case 0:
      return read_container(lab::open_safetensors, file);
    case 1:
      return read_container(lab::open_npz, file);
    case 2:
      return read_npy_header(file);
    case 3:
      return read_inputs(file);
    case 4:
      return read_edited_results(file);
    default:
      return read_results(file);
  }
}

}  // namespace flashlab::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // Exactly as much memory as there is file: reading past its end is seen.
  const std::vector<std::uint8_t> file(data + 1, data + size);
  flashlab::fuzz::read_as(data[0], std::as_bytes(std::span(file)));
  return 0;
}
