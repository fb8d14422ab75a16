#pragma once

// Ranks of a test: real processes, which say what went wrong by a pipe; and what they add.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dist/shared/shared_communicator.h"
#include "dist/sums/tree_sum.h"

namespace flashlab::dist {

using Bytes = std::vector<unsigned char>;

/// `count` values of a rank, the same wherever they are made.
inline Bytes values_of(int rank, std::size_t count, DType dtype) {
  Bytes out(count * size_of(dtype));
  std::mt19937 random(static_cast<unsigned>(rank) * 977 + 5);
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = normal(random);
    const auto narrow = static_cast<float>(value);
    const std::uint16_t fp16 = fp16_from_float(narrow), bf16 = bf16_from_float(narrow);
    unsigned char* to = out.data() + i * size_of(dtype);
    if (dtype == DType::kFp64) std::memcpy(to, &value, 8);
    if (dtype == DType::kFp32) std::memcpy(to, &narrow, 4);
    if (dtype == DType::kFp16) std::memcpy(to, &fp16, 2);
    if (dtype == DType::kBf16) std::memcpy(to, &bf16, 2);
  }
  return out;
}

/// The sum of all ranks' values, by the definition.
inline Bytes sum_of(int ranks, std::size_t count, DType dtype) {
  std::vector<Bytes> all;
  std::vector<const void*> parts;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(values_of(rank, count, dtype));
  for (const Bytes& one : all) parts.push_back(one.data());
  Bytes out(count * size_of(dtype));
  tree_sum(parts, out.data(), count, dtype);
  return out;
}

/// What a rank said (empty: all was right), and how its process ended.
struct RankEnd {
  std::string said;
  int wait_status = 0;
};

using RankBody = std::function<std::string(runtime::Communicator&)>;

inline std::string read_all(int descriptor) {
  std::string out;
  char piece[4096];
  for (ssize_t n; (n = ::read(descriptor, piece, sizeof piece)) > 0;) {
    out.append(piece, static_cast<std::size_t>(n));
  }
  ::close(descriptor);
  return out;
}

/// One process.
struct Forked {
  pid_t pid = -1;
  int said = -1;

  RankEnd wait() {
    RankEnd out;
    out.said = read_all(said);
    ::waitpid(pid, &out.wait_status, 0);
    return out;
  }
};

inline Forked fork_one(const std::function<std::string()>& body) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Forked out{::fork(), ends[0]};
  if (out.pid == 0) {
    ::alarm(120);  // a test that hangs ends
    const std::string text = body();
    [[maybe_unused]] const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  return out;
}

struct RanksOptions {
  int size = 2;
  double timeout_s = 60;
  std::size_t chunk_bytes = 4096;  // small, so that a few kilobytes are many rounds
  std::size_t direct_bytes = kDirectBytes;
};

/// Every rank runs `body`; returns when all have ended. `meanwhile` may send them signals.
inline std::vector<RankEnd> run_ranks(
    const RanksOptions& options, const RankBody& body,
    const std::function<void(const std::vector<Forked>&)>& meanwhile = {}) {
  SegmentOptions segment{.size = options.size,
                         .chunk_bytes = options.chunk_bytes,
                         .timeout_s = options.timeout_s,
                         .host = "testhost",
                         .build = "test"};
  const Result<int> descriptor = Segment::descriptor_for(segment);
  EXPECT_TRUE(descriptor.ok()) << descriptor.status().message();
  std::vector<Forked> ranks;
  for (int rank = 0; rank < options.size; ++rank) {
    ranks.push_back(fork_one([&, rank]() -> std::string {
      segment.rank = rank;
      auto entered = Segment::enter(*descriptor, segment);
      if (!entered.ok()) return entered.status().message();
      auto group =
          shared_communicator(std::move(entered).value(), rank, options.size, options.direct_bytes);
      return body(*group);
    }));
  }
  ::close(*descriptor);
  if (meanwhile) meanwhile(ranks);
  std::vector<RankEnd> out;
  for (Forked& rank : ranks) out.push_back(rank.wait());
  return out;
}

}  // namespace flashlab::dist
