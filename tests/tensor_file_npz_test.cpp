// .npz: zip and npy, what is read, and what is refused with which words.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "lab/data/tensor_file/formats.h"
#include "lab/data/tensor_file/tensor_file.h"
#include "tensor_file_builder.h"

namespace flashlab::lab::tests {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kTuple = "(1, 2, 1, 3)";

std::string numbers(int count, float first) {
  std::vector<float> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), first);
  return raw(out);
}

std::string array(float first) {
  return npy(dictionary("<f4", kTuple), numbers(6, first));
}

std::vector<Member> good(bool deflated = false) {
  return {{"q.npy", array(1), deflated, false, false, {}},
          {"k.npy", array(7), deflated, false, false, {}},
          {"v.npy", array(13), deflated, false, false, {}}};
}

Status npz_failure(const std::string& file, const TensorFileLimits& limits = {}) {
  return parse_attention_inputs(as_bytes(file), "a.npz", limits).status();
}

// The good file with another q.
Status failure_with(const std::string& q, bool deflated = false) {
  std::vector<Member> members = good();
  members[0].contents = q;
  members[0].deflated = deflated;
  return npz_failure(zip(members));
}

Status failure_with(std::function<void(std::string&)> falsify, bool deflated = true) {
  std::vector<Member> members = good(deflated);
  members[0].falsify = std::move(falsify);
  return npz_failure(zip(members));
}

std::function<void(std::string&)> overwrite(std::size_t at, const std::string& bytes) {
  return [=](std::string& entry) { entry.replace(at, bytes.size(), bytes); };
}

void expect_good(const std::string& file) {
  const Result<AttentionInputs> inputs = parse_attention_inputs(as_bytes(file), "a.npz");
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  EXPECT_EQ(inputs->q.spec.shape, (std::array<std::int64_t, 4>{1, 2, 1, 3}));
  EXPECT_EQ(inputs->q.spec.strides, (std::array<std::int64_t, 4>{6, 3, 3, 1}));
  EXPECT_EQ(static_cast<const float*>(inputs->q.data)[5], 6.0f);
  EXPECT_EQ(static_cast<const float*>(inputs->k.data)[0], 7.0f);
  EXPECT_EQ(static_cast<const float*>(inputs->v.data)[5], 18.0f);
}

TEST(TensorFileNpz, ReadsStoredDeflatedZip64AndDataDescriptors) {
  expect_good(zip(good(false)));
  expect_good(zip(good(true)));
  expect_good(zip(good(true), "a comment with PK\x05\x06 inside and some 20 bytes more"));
  std::vector<Member> members = good(true);
  members[0].zip64 = true;
  members[1].data_descriptor = true;
  members[2].zip64 = members[2].data_descriptor = true;
  expect_good(zip(members));
}

TEST(TensorFileNpz, ReadsLargeDeflatedArraysAcrossChunks) {
  // Incompressible and longer than several of the reader's chunks.
  std::vector<float> values(1 * 500 * 2 * 64);
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / 16777216.0f;
  }
  const std::string contents = npy(dictionary("<f4", "(1, 500, 2, 64)"), raw(values));
  const std::string file = zip({{"q.npy", contents, true, false, false, {}},
                                {"k.npy", contents, false, false, false, {}},
                                {"v.npy", contents, true, false, true, {}}});
  const Result<AttentionInputs> inputs = parse_attention_inputs(as_bytes(file), "a.npz");
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  for (const ConstTensor* tensor : {&inputs->q, &inputs->k, &inputs->v}) {
    EXPECT_EQ(std::memcmp(tensor->data, values.data(), values.size() * 4), 0);
  }
}

TEST(TensorFileNpz, ReadsVersionsTypesAndFortranOrder) {
  const std::vector<double> doubles = {1, 2, 3, 4, 5, 6};
  const std::string fortran = npy(dictionary("<f8", kTuple, true), raw(doubles), 2);
  const std::string plain = npy(dictionary("<f8", kTuple), raw(doubles), 3);
  const std::string file = zip({{"q.npy", fortran, false, false, false, {}},
                                {"k.npy", plain, false, false, false, {}},
                                {"v.npy", plain, false, false, false, {}},
                                {"do.npy", plain, false, false, false, {}},
                                {"note.txt", "not an array", false, false, false, {}}});
  const Result<AttentionInputs> inputs = parse_attention_inputs(as_bytes(file), "a.npz");
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  EXPECT_EQ(inputs->q.spec.dtype, DType::kFp64);
  EXPECT_EQ(inputs->q.spec.strides, (std::array<std::int64_t, 4>{1, 1, 2, 2}));
  EXPECT_EQ(static_cast<const double*>(inputs->q.data)[5], 6.0);
  EXPECT_TRUE(inputs->d_o.has_value());
}

TEST(TensorFileNpz, EveryTruncationIsAnError) {
  for (const bool deflated : {false, true}) {
    const std::string file = zip(good(deflated));
    for (std::size_t length = 0; length < file.size(); ++length) {
      const Status status = npz_failure(file.substr(0, length));
      ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << "length " << length;
      ASSERT_THAT(status.message(), HasSubstr("a.npz")) << "length " << length;
    }
  }
}

TEST(TensorFileNpz, NoFlippedBitGivesOtherValues) {
  const std::string file = zip(good(true));
  for (std::size_t bit = 0; bit < file.size() * 8; ++bit) {
    std::string changed = file;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    const Result<AttentionInputs> inputs = parse_attention_inputs(as_bytes(changed), "a.npz");
    if (!inputs.ok()) continue;  // most bits; the rest are times, versions and local copies
    EXPECT_EQ(static_cast<const float*>(inputs->q.data)[5], 6.0f) << "bit " << bit;
    EXPECT_EQ(static_cast<const float*>(inputs->v.data)[5], 18.0f) << "bit " << bit;
  }
}

TEST(TensorFileNpz, LyingDirectories) {
  EXPECT_THAT(failure_with(overwrite(16, "abcd")).message(),
              AllOf(HasSubstr("\"q.npy\""), HasSubstr("checksum"), HasSubstr("64636261")));
  EXPECT_THAT(failure_with(overwrite(10, little_endian(12, 2))).message(),
              HasSubstr("compression method 12"));
  EXPECT_THAT(failure_with(overwrite(8, little_endian(1, 2))).message(),
              HasSubstr("an encrypted member"));
  EXPECT_THAT(failure_with(overwrite(24, little_endian(400'000'000, 4))).message(),
              HasSubstr("at most 1032 times"));
  EXPECT_THAT(failure_with(overwrite(24, little_endian(400, 4))).message(),
              AllOf(HasSubstr("bytes of elements"), HasSubstr("as descr and shape say")));
  EXPECT_THAT(failure_with(overwrite(20, little_endian(1 << 30, 4))).message(),
              HasSubstr("members before byte"));
  EXPECT_THAT(failure_with(overwrite(20, little_endian(30, 4))).message(),
              HasSubstr("as the directory says"));
  EXPECT_THAT(failure_with(overwrite(42, little_endian(5, 4))).message(),
              HasSubstr("no local header"));
  EXPECT_THAT(failure_with(overwrite(42, little_endian(0xffffffff, 4))).message(),
              HasSubstr("zip64"));
  EXPECT_THAT(failure_with(overwrite(24, little_endian(151, 4)), false).message(),
              HasSubstr("equal sizes of a stored member"));
  std::vector<Member> twice = good();
  twice[1].name = "q.npy";
  EXPECT_THAT(npz_failure(zip(twice)).message(), HasSubstr("\"q.npy\" twice"));
}

TEST(TensorFileNpz, BombsAreRefusedBeforeMemoryIsTaken) {
  // 1 GiB of zeros would deflate to 1 MiB: a limit stops it by what the array's head says.
  const std::string head = npy(dictionary("<f4", "(1, 268435456, 1, 1)"), std::string(4096, '\0'));
  EXPECT_THAT(failure_with(head, true).message(), HasSubstr("1073741824, as descr and shape say"));
  const std::string honest = npy(dictionary("<f4", "(1, 65536, 1, 4)"), std::string(1 << 20, '\0'));
  std::vector<Member> members = good();
  members[0].contents = honest;
  members[0].deflated = true;
  const Status status = npz_failure(zip(members), {.max_bytes = 1000});
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(status.message(), HasSubstr("at most 1000 bytes"));
}

TEST(TensorFileNpz, MalformedArrays) {
  const std::string data = numbers(6, 1);
  const auto npy_failure = [&](const std::string& text) {
    return failure_with(npy(text, data)).message();
  };
  EXPECT_THAT(failure_with(std::string("nothing that is an array at all")).message(),
              HasSubstr("an .npy array"));
  EXPECT_THAT(failure_with(std::string("short")).message(), HasSubstr("5 bytes"));
  EXPECT_THAT(failure_with(npy(dictionary("<f4", kTuple), data, 4)).message(),
              HasSubstr("got 4, expected 1, 2 or 3"));
  EXPECT_THAT(npy_failure(dictionary(">f4", kTuple)),
              AllOf(HasSubstr("q.npy: descr: got \">f4\""), HasSubstr("little-endian")));
  EXPECT_THAT(npy_failure(dictionary("<i4", kTuple)), HasSubstr("astype('float32')"));
  EXPECT_THAT(npy_failure(dictionary("|V2", kTuple)), HasSubstr("bf16 needs .safetensors"));
  EXPECT_THAT(npy_failure(dictionary("|O", kTuple)), HasSubstr("descr"));
  EXPECT_THAT(npy_failure("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}"),
              HasSubstr("descr (one type)"));
  EXPECT_THAT(npy_failure("{'descr': '<f4', 'fortran_order': False}"),
              HasSubstr("a dictionary of"));
  EXPECT_THAT(npy_failure("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}"),
              HasSubstr("a dictionary of"));
  EXPECT_THAT(npy_failure("__import__('os').system('true')"), HasSubstr("a dictionary of"));
  EXPECT_THAT(npy_failure(dictionary("<f4", "(1, -2, 1, 3)")), HasSubstr("a dictionary of"));
  EXPECT_THAT(npy_failure(dictionary("<f4", "(1, 99999999999999999999, 1)")),
              HasSubstr("a dictionary of"));
  EXPECT_THAT(npy_failure(dictionary("<f4", "(4294967296, 4294967296, 1, 1)")),
              HasSubstr("fits in 62 bits"));
  EXPECT_THAT(npy_failure(dictionary("<f4", "(1, 2, 1, 4)")),
              HasSubstr("24 bytes of elements, expected 32"));
  EXPECT_THAT(npy_failure(dictionary("<f4", "(2, 3)")), HasSubstr("2 dimensions, [2, 3]"));
}

TEST(TensorFileNpz, LyingNpyHeaderLengths) {
  std::string text = array(1);
  for (const int length : {0, 1, 300, 65535}) {
    text.replace(8, 2, little_endian(static_cast<std::uint64_t>(length), 2));
    EXPECT_EQ(failure_with(text).code(), StatusCode::kInvalidArgument) << length;
  }
  std::string second = npy(dictionary("<f4", kTuple), numbers(6, 1), 2);
  second.replace(8, 4, little_endian(0xffffffff, 4));
  EXPECT_THAT(failure_with(second).message(), HasSubstr("header length: got 4294967295"));
}

TEST(TensorFileNpz, OtherFiles) {
  EXPECT_THAT(npz_failure(array(1)).message(), HasSubstr("numpy.savez"));
  EXPECT_THAT(npz_failure("").message(), HasSubstr("0 bytes"));
  EXPECT_THAT(npz_failure("PK\x03\x04 and no more").message(), HasSubstr("truncated"));
  EXPECT_THAT(npz_failure(zip({})).message(), HasSubstr("no tensors"));
}

}  // namespace
}  // namespace flashlab::lab::tests
