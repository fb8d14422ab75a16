#include "lab/machine/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <limits>
#include <thread>
#include <vector>

namespace flashlab::lab {
namespace {

using testing::HasSubstr;

TEST(TrackingAllocator, HighWaterAndLedger) {
  TrackingAllocator tracker;
  void* a = *tracker.allocate(1000, 64, {}, {"workspace", "attention.forward"});
  void* b = *tracker.allocate(500, 256, {}, {"gradient", "attention.backward"});
  EXPECT_EQ(tracker.current_bytes(), 1500);
  tracker.deallocate(a, 1000, {});
  void* c = *tracker.allocate(200, 64, {}, {"workspace", "attention.forward"});
  EXPECT_EQ(tracker.current_bytes(), 700);
  EXPECT_EQ(tracker.peak_bytes(), 1500);
  EXPECT_EQ(tracker.allocations(), 3);

  const auto ledger = tracker.ledger();
  ASSERT_EQ(ledger.size(), 2u);
  EXPECT_EQ(ledger[0].role, "workspace");
  EXPECT_EQ(ledger[0].place, "attention.forward");
  EXPECT_EQ(ledger[0].peak_bytes, 1000);
  EXPECT_EQ(ledger[0].current_bytes, 200);
  EXPECT_EQ(ledger[0].allocations, 2);
  EXPECT_EQ(ledger[1].peak_bytes, 500);

  tracker.reset_peak();
  EXPECT_EQ(tracker.peak_bytes(), 700);
  EXPECT_EQ(tracker.allocations(), 0);
  tracker.deallocate(b, 500, {});
  tracker.deallocate(c, 200, {});
  EXPECT_EQ(tracker.current_bytes(), 0);
  EXPECT_EQ(tracker.peak_bytes(), 700);
}

TEST(TrackingAllocator, LimitRefusesWithAccounts) {
  TrackingAllocator tracker;
  tracker.set_limit(1 << 20);
  void* a = *tracker.allocate(1 << 19, 64, {}, {"workspace", "here"});
  const auto refused = tracker.allocate(3 << 19, 64, {}, {"scores", "here"});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(refused.status().detail().argument, "scores");
  EXPECT_THAT(refused.status().detail().got, HasSubstr("1.5 MiB"));
  EXPECT_THAT(refused.status().detail().got, HasSubstr("512 KiB"));
  EXPECT_THAT(refused.status().detail().expected, HasSubstr("1 MiB"));
  EXPECT_FALSE(refused.status().detail().remedy.empty());
  EXPECT_EQ(tracker.peak_bytes(), 1 << 19);  // a refusal leaves no trace
  // A size that would overflow a sum is refused, not wrapped around.
  EXPECT_FALSE(tracker.allocate(std::numeric_limits<std::size_t>::max() - 8, 64, {}, {}).ok());
  tracker.deallocate(a, 1 << 19, {});
}

class RefusingAllocator final : public Allocator {
 public:
  Result<void*> allocate(std::size_t, std::size_t, Stream, Tag) noexcept override {
    return Status::out_of_memory({"test", "any", "none", "nothing"});
  }
  void deallocate(void*, std::size_t, Stream) noexcept override {}
};

TEST(TrackingAllocator, RefusalOfTheInnerOneIsNotCounted) {
  RefusingAllocator inner;
  TrackingAllocator tracker(inner);
  EXPECT_FALSE(tracker.allocate(100, 64, {}, {"a", "b"}).ok());
  EXPECT_EQ(tracker.peak_bytes(), 0);
  EXPECT_TRUE(tracker.ledger().empty());
}

TEST(TrackingAllocator, ManyThreads) {
  TrackingAllocator tracker;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&tracker, t] {
      static constexpr const char* kRoles[] = {"a", "b", "c", "d"};
      for (std::size_t i = 1; i <= 200; ++i) {
        void* memory = *tracker.allocate(i, 64, {}, {kRoles[t], "thread"});
        std::memset(memory, t, i);
        tracker.deallocate(memory, i, {});
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(tracker.current_bytes(), 0);
  EXPECT_EQ(tracker.allocations(), 800);
  EXPECT_GE(tracker.peak_bytes(), 200);
  EXPECT_LE(tracker.peak_bytes(), 800);
  EXPECT_EQ(tracker.ledger().size(), 4u);
}

TEST(Memory, FormatsBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(16.25 * 1024 * 1024), "16.2 MiB");
  EXPECT_EQ(format_bytes(256.0 * (1ull << 30)), "256 GiB");
  EXPECT_EQ(format_bytes(8.0 * (1ull << 40)), "8 TiB");
}

TEST(Memory, SystemFigures) {
  const auto total = total_memory_bytes();
  ASSERT_TRUE(total.has_value());
  EXPECT_GT(*total, 64 << 20);
  const auto peak = process_peak_bytes();
  ASSERT_TRUE(peak.has_value());
  EXPECT_GT(*peak, 0);
}

TEST(Memory, ProcessPeakFollowsAResetWhereAllowed) {
  if (!reset_process_peak()) GTEST_SKIP() << "this system does not allow resetting the peak";
  constexpr std::size_t kBytes = 96 << 20;
  const auto before = process_peak_bytes();
  {
    // Mapped rather than allocated: AddressSanitizer's allocator keeps what is freed.
    void* mapped =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    std::memset(mapped, 1, kBytes);
    const volatile unsigned char* touched = static_cast<unsigned char*>(mapped);
    ASSERT_EQ(touched[kBytes - 1], 1);
    ASSERT_EQ(munmap(mapped, kBytes), 0);
  }
  const auto after = process_peak_bytes();
  ASSERT_TRUE(before && after);
  EXPECT_GE(*after - *before, static_cast<std::int64_t>(kBytes / 2));
  ASSERT_TRUE(reset_process_peak());
  EXPECT_LT(*process_peak_bytes(), *after);
}

}  // namespace
}  // namespace flashlab::lab
