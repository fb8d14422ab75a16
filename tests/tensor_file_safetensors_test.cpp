// .safetensors: what is read, and what is refused with which words.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "lab/data/tensor_file/tensor_file.h"
#include "tensor_file_builder.h"

namespace flashlab::lab::tests {
namespace {

using testing::HasSubstr;

constexpr const char* kShape = "[1,2,1,3]";

std::vector<float> counting(int count, float first) {
  std::vector<float> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  int begin, int end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype,
                     shape, begin, end);
}

// q, k, v of [1, 2, 1, 3] fp32: 24 bytes each.
std::string good_header() {
  return "{" + entry("q", "F32", kShape, 0, 24) + "," + entry("k", "F32", kShape, 24, 48) + "," +
         entry("v", "F32", kShape, 48, 72) + "}";
}

std::string good_data() {
  return raw(counting(18, 1));
}

Status failure(const std::string& file, const TensorFileLimits& limits = {}) {
  const Result<AttentionInputs> inputs = parse_attention_inputs(as_bytes(file), "a.st", limits);
  return inputs.status();
}

Status header_failure(const std::string& header) {
  return failure(safetensors(header, good_data()));
}

TEST(TensorFileSafetensors, ReadsThreeTensors) {
  const std::string file = safetensors(good_header(), good_data());
  const Result<AttentionInputs> inputs = parse_attention_inputs(as_bytes(file), "a.st");
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  EXPECT_EQ(inputs->q.spec.dtype, DType::kFp32);
  EXPECT_EQ(inputs->q.spec.shape, (std::array<std::int64_t, 4>{1, 2, 1, 3}));
  EXPECT_EQ(inputs->q.spec.strides, (std::array<std::int64_t, 4>{6, 3, 3, 1}));
  EXPECT_EQ(static_cast<const float*>(inputs->q.data)[5], 6.0f);
  EXPECT_EQ(static_cast<const float*>(inputs->k.data)[0], 7.0f);
  EXPECT_EQ(static_cast<const float*>(inputs->v.data)[5], 18.0f);
  EXPECT_FALSE(inputs->d_o.has_value());
}

TEST(TensorFileSafetensors, ReadsGradientMetadataOtherTensorsAndBf16) {
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"}," + entry("ids", "I64", "[1]", 0, 8) + "," +
      entry("q", "BF16", "[1,1,2,2]", 8, 16) + "," + entry("k", "BF16", "[1,3,1,2]", 16, 28) + "," +
      entry("v", "BF16", "[1,3,1,1]", 28, 34) + "," + entry("do", "BF16", "[1,1,2,1]", 34, 38) +
      "}   ";
  std::string data(38, '\0');
  const std::uint16_t one = bf16_from_float(1.5f);
  std::memcpy(data.data() + 34, &one, 2);
  const std::string file = safetensors(header, data);
  const Result<AttentionInputs> inputs = parse_attention_inputs(as_bytes(file), "a.st");
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  ASSERT_TRUE(inputs->d_o.has_value());
  EXPECT_EQ(inputs->d_o->spec.dtype, DType::kBf16);
  std::uint16_t bits = 0;
  std::memcpy(&bits, inputs->d_o->data, 2);
  EXPECT_EQ(float_from_bf16(bits), 1.5f);
  EXPECT_EQ(inputs->k.spec.shape, (std::array<std::int64_t, 4>{1, 3, 1, 2}));
}

TEST(TensorFileSafetensors, EveryTruncationIsAnError) {
  const std::string file = safetensors(good_header(), good_data());
  for (std::size_t length = 0; length < file.size(); ++length) {
    const Status status = failure(file.substr(0, length));
    ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << "length " << length;
    ASSERT_THAT(status.message(), HasSubstr("a.st")) << "length " << length;
  }
  EXPECT_THAT(failure(file.substr(0, file.size() - 1)).message(), HasSubstr("truncated"));
}

TEST(TensorFileSafetensors, EveryFlippedHeaderBitIsReadOrRefused) {
  const std::string file = safetensors(good_header(), good_data());
  for (std::size_t bit = 0; bit < (8 + good_header().size()) * 8; ++bit) {
    std::string changed = file;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    const Status status = failure(changed);
    if (!status.ok()) {
      EXPECT_FALSE(status.message().empty());
    }
  }
}

TEST(TensorFileSafetensors, LyingHeaderLengths) {
  const std::string file = safetensors(good_header(), good_data());
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{file.size()}, std::uint64_t{100'000'001},
        std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    const Status status = failure(little_endian(length, 8) + file.substr(8));
    EXPECT_THAT(status.message(),
                testing::AllOf(HasSubstr("header length"), HasSubstr(std::to_string(length))));
  }
}

TEST(TensorFileSafetensors, MalformedHeaders) {
  EXPECT_THAT(header_failure("{\"q\":").message(), HasSubstr("a JSON object"));
  EXPECT_THAT(header_failure("[1, 2]").message(), HasSubstr("a JSON object"));
  EXPECT_THAT(header_failure("{\"q\": 1}").message(), HasSubstr("an object with dtype"));
  // Deep enough for a function that recurses to overflow the stack.
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    const std::string header = fmt::format(R"({{"q": {{"{}": {}}}}})", key, deep);
    EXPECT_THAT(header_failure(header).message(), HasSubstr("nested over 64 levels"));
  }
  EXPECT_THAT(header_failure(std::string(5000, '[')).message(), HasSubstr("a JSON object"));
  EXPECT_THAT(header_failure("{" + entry("q", "F32", kShape, 0, 24) + "," +
                             entry("q", "F32", kShape, 24, 48) + "}")
                  .message(),
              HasSubstr("\"q\" twice"));
  EXPECT_THAT(header_failure("{" + entry("q", "F33", kShape, 0, 24) + "}").message(),
              HasSubstr("got \"\"F33\"\""));
  EXPECT_THAT(header_failure("{" + entry("q", "F32", "[-1,2]", 0, 24) + "}").message(),
              HasSubstr("natural numbers"));
  EXPECT_THAT(header_failure("{" + entry("q", "F32", "[1.5]", 0, 24) + "}").message(),
              HasSubstr("natural numbers"));
  EXPECT_THAT(
      header_failure("{" + entry("q", "F32", "[4294967296,4294967296,2]", 0, 24) + "}").message(),
      HasSubstr("natural numbers whose product fits"));
  EXPECT_THAT(header_failure("{" + entry("q", "F32", kShape, 24, 0) + "}").message(),
              HasSubstr("begin <= end"));
  EXPECT_THAT(header_failure("{" + entry("q", "F32", kShape, 0, 20) + "}").message(),
              HasSubstr("24 bytes, as dtype and shape say"));
}

TEST(TensorFileSafetensors, OverlapsGapsAndBytesTooMany) {
  const auto three = [](int k_begin, int v_begin) {
    return "{" + entry("q", "F32", kShape, 0, 24) + "," +
           entry("k", "F32", kShape, k_begin, k_begin + 24) + "," +
           entry("v", "F32", kShape, v_begin, v_begin + 24) + "}";
  };
  EXPECT_THAT(header_failure(three(20, 48)).message(), HasSubstr("tensors overlap"));
  EXPECT_THAT(header_failure(three(0, 24)).message(), HasSubstr("tensors overlap"));
  EXPECT_THAT(header_failure(three(24, 52)).message(), HasSubstr("truncated"));
  EXPECT_THAT(failure(safetensors(three(24, 52), good_data() + "1234")).message(),
              HasSubstr("there is a gap"));
  EXPECT_THAT(failure(safetensors(good_header(), good_data() + "1")).message(),
              HasSubstr("73 bytes of data, expected 72"));
}

TEST(TensorFileSafetensors, UnsuitableTensors) {
  EXPECT_THAT(failure(safetensors("{" + entry("x", "F32", kShape, 0, 24) + "," +
                                      entry("y", "F32", kShape, 24, 72 - 24) + "}",
                                  good_data().substr(0, 48)))
                  .message(),
              testing::AllOf(HasSubstr("\"x\", \"y\""), HasSubstr("one named \"q\"")));
  EXPECT_THAT(failure(safetensors("{}", "")).message(), HasSubstr("no tensors"));
  EXPECT_THAT(header_failure("{" + entry("q", "F32", "[2,3]", 0, 24) + "," +
                             entry("k", "F32", kShape, 24, 48) + "," +
                             entry("v", "F32", kShape, 48, 72) + "}")
                  .message(),
              testing::AllOf(HasSubstr("a.st: q"), HasSubstr("2 dimensions, [2, 3]")));
  EXPECT_THAT(header_failure("{" + entry("q", "I32", kShape, 0, 24) + "," +
                             entry("k", "F32", kShape, 24, 48) + "," +
                             entry("v", "F32", kShape, 48, 72) + "}")
                  .message(),
              HasSubstr("a.st: q: got I32, expected F64, F32, F16 or BF16"));
  EXPECT_THAT(header_failure("{" + entry("q", "F32", kShape, 0, 24) + "," +
                             entry("k", "F16", "[1,2,2,3]", 24, 48) + "," +
                             entry("v", "F32", kShape, 48, 72) + "}")
                  .message(),
              HasSubstr("a.st: k: got fp16, expected fp32 as q"));
  EXPECT_THAT(header_failure("{" + entry("q", "F32", kShape, 0, 24) + "," +
                             entry("k", "F32", "[1,3,1,2]", 24, 48) + "," +
                             entry("v", "F32", kShape, 48, 72) + "}")
                  .message(),
              HasSubstr("k.shape[3]: got 2 of [1, 3, 1, 2], expected 3 (q's head_dim"));
  EXPECT_THAT(header_failure("{" + entry("q", "F32", "[1,1,2,3]", 0, 24) + "," +
                             entry("k", "F32", "[1,0,3,3]", 24, 24) + "," +
                             entry("v", "F32", "[1,0,3,4]", 24, 24) + "," +
                             entry("z", "F32", "[12]", 24, 72) + "}")
                  .message(),
              HasSubstr("a divisor of q's 2 heads"));
}

TEST(TensorFileSafetensors, MemoryLimitNamesTensorAndBytes) {
  const Status status = failure(safetensors(good_header(), good_data()), {.max_bytes = 40});
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(status.message(),
              testing::AllOf(HasSubstr("a.st: k"), HasSubstr("at most 16 bytes")));
}

TEST(TensorFileSafetensors, EmptyTensorsBesideHugeExtents) {
  const std::string header = "{" + entry("q", "F32", "[0,4611686018427387904,4,4]", 0, 0) + "}";
  EXPECT_EQ(failure(safetensors(header, "")).code(), StatusCode::kInvalidArgument);
}

TEST(TensorFileSafetensors, FilesOnDisk) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("flashlab-st-{}", ::getpid());
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / "a.safetensors";
  {
    std::ofstream out(path, std::ios::binary);
    out << safetensors(good_header(), good_data());
  }
  EXPECT_TRUE(read_attention_inputs(path).ok());
  const Status missing = read_attention_inputs(folder / "none").status();
  EXPECT_EQ(missing.code(), StatusCode::kIoError);
  EXPECT_THAT(missing.message(), HasSubstr("No such file"));
  EXPECT_THAT(read_attention_inputs(folder).status().message(), HasSubstr("got a folder"));
  EXPECT_THAT(read_attention_inputs("/dev/null").status().message(), HasSubstr("no regular file"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace flashlab::lab::tests
