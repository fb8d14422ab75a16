#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "runtime/cpu/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flashlab::internal {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  ThreadPool pool(4);
  for (std::int64_t tasks : {0, 1, 2, 3, 4, 5, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
    pool.run(tasks, [&](std::int64_t task, int) { runs[static_cast<std::size_t>(task)]++; });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
  }
}

TEST(ThreadPool, WorkerNumbersAreDistinctAndBounded) {
  ThreadPool pool(4);
  for (int limit : {1, 2, 3, 4, 9}) {
    const int workers = std::min(limit, 4);
    std::vector<std::atomic<int>> inside(static_cast<std::size_t>(workers));
    std::atomic<bool> clash{false};
    pool.run(
        400,
        [&](std::int64_t, int worker) {
          if (worker < 0 || worker >= workers) {
            clash = true;
            return;
          }
          auto& here = inside[static_cast<std::size_t>(worker)];
          if (here.fetch_add(1) != 0) clash = true;
          std::this_thread::yield();
          here.fetch_sub(1);
        },
        limit);
    EXPECT_FALSE(clash.load()) << "limit " << limit;
  }
}

TEST(ThreadPool, SeveralCallersAtOnceAllFinish) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        pool.run(7, [&](std::int64_t task, int) { total += task; });
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 6 * 50 * 21);
}

TEST(ThreadPool, ATaskMayRunTheSamePool) {
  ThreadPool pool(2);
  std::atomic<int> inner{0};
  pool.run(4, [&](std::int64_t, int) { pool.run(5, [&](std::int64_t, int) { inner++; }); });
  EXPECT_EQ(inner.load(), 20);
}

TEST(ThreadPool, SurvivesFork) {
  ThreadPool pool(3);
  std::atomic<int> before{0};
  pool.run(10, [&](std::int64_t, int) { before++; });
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> count{0};
    pool.run(100, [&](std::int64_t, int) { count++; });
    _exit(count.load() == 100 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  pool.run(10, [&](std::int64_t, int) { before++; });
  EXPECT_EQ(before.load(), 20);
}

#if defined(__x86_64__)
TEST(ThreadPool, TasksRunInTheDefaultFloatEnvironment) {
  ThreadPool pool(2);
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);  // flush to zero, denormals are zero
  const unsigned callers = _mm_getcsr();
  std::atomic<int> different{0};
  pool.run(64, [&](std::int64_t, int) {
    if ((_mm_getcsr() & 0xffc0u) != 0x1f80u) different++;
    std::this_thread::yield();
  });
  EXPECT_EQ(_mm_getcsr(), callers) << "the caller's settings come back";
  _mm_setcsr(saved);
  EXPECT_EQ(different.load(), 0);
}
#endif

}  // namespace
}  // namespace flashlab::internal
