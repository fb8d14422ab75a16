// A child may use its parent's Context, whatever the parent's other threads were doing at the fork.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "flashlab/flashlab.h"

namespace flashlab {
namespace {

// Before LLVM 17 its allocator may be locked by another thread when a child is made, and stay so.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)
constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#else
constexpr bool kAddressSanitizer = false;
#endif

constexpr int kChildren = 64;
constexpr unsigned kChildSeconds = 60;  // far above a call of microseconds, for a busy machine

// q, k, v and o [1, 4, 2, 8].
struct SmallCall {
  std::vector<float> values = std::vector<float>(64, 0.5f), o = std::vector<float>(64);

  Status run(const Context& context) {
    const float* data = values.data();
    return forward(context, Stream{},
                   ForwardTensors{.q = tensor(data, {1, 4, 2, 8}),
                                  .k = tensor(data, {1, 4, 2, 8}),
                                  .v = tensor(data, {1, 4, 2, 8}),
                                  .o = tensor(o.data(), {1, 4, 2, 8})});
  }
};

TEST(Fork, AChildRunsWhileAThreadOfTheParentPlanned) {
  if (kAddressSanitizer) GTEST_SKIP() << "AddressSanitizer's allocator may hold a lock at fork()";
  const auto context = Context::create({.threads = 2});
  ASSERT_TRUE(context.ok());
  std::atomic<bool> stop{false};
  std::thread planner([&] {
    SmallCall call;
    const float* data = call.values.data();
    const Problem problem = describe(ForwardTensors{.q = tensor(data, {1, 4, 2, 8}),
                                                    .k = tensor(data, {1, 4, 2, 8}),
                                                    .v = tensor(data, {1, 4, 2, 8}),
                                                    .o = tensor(call.o.data(), {1, 4, 2, 8})},
                                     Options{});
    while (!stop) EXPECT_TRUE(plan(*context, problem).ok());
  });
  int hung = 0;
  for (int n = 0; n < kChildren && hung == 0; ++n) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(kChildSeconds);  // ends a child that hangs
      _exit(SmallCall().run(*context).ok() ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
      ++hung;
    else
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "child " << n;
  }
  stop = true;
  planner.join();
  EXPECT_EQ(hung, 0) << "a child waited for a lock that a thread of its parent held";
}

}  // namespace
}  // namespace flashlab
