#include "runtime/cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flashlab::internal {
namespace {

// Rounding mode, flush-to-zero and denormals-are-zero live in each thread. Tasks run under the
// defaults whoever runs them, so a caller's settings cannot make a result depend on scheduling.
class DefaultFloatEnvironment {
 public:
#if defined(__x86_64__)
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) {
    _mm_setcsr(0x1f80);
  }
  ~DefaultFloatEnvironment() {
    _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
#endif
};

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Sleeping and waking through the kernel costs tens of microseconds, as much as a small call.
constexpr auto kSpin = std::chrono::microseconds(30);

template <class Condition>
bool spin_until(const Condition& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

struct Job {
  Job(TaskRef call, std::int64_t count, int max_workers)
      : task(call), tasks(count), workers(max_workers) {}

  TaskRef task;
  const std::int64_t tasks;
  const int workers;
  std::atomic<std::int64_t> next{0};
  int joined = 1;               // guarded by the pool's mutex; the caller is worker 0
  std::atomic<int> helping{0};  // pool threads inside work()

  void work(int worker) {
    const DefaultFloatEnvironment environment;
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      task(i, worker);
    }
  }
};

}  // namespace

struct ThreadPool::State {
  explicit State(int threads) : size(threads) {}

  const int size;
  std::mutex mutex;
  std::condition_variable wake;      // a job was queued, or stop
  std::condition_variable finished;  // a pool thread left a job
  std::deque<Job*> queue;            // jobs that take further workers
  std::atomic<int> queued{0};        // queue.size(), readable without the lock
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};

  // Called with the lock held. A system that refuses a thread leaves a smaller pool: the caller
  // always works, so every job still finishes.
  void start_threads() {
    try {
      while (static_cast<int>(threads.size()) < size - 1) threads.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
      return;
    }
  }

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      if (queue.empty() && !stop) {
        lock.unlock();
        spin_until([this] { return queued.load(std::memory_order_relaxed) > 0 || stop.load(); });
        lock.lock();
        wake.wait(lock, [this] { return stop.load() || !queue.empty(); });
      }
      if (stop) return;
      Job& job = *queue.front();
      const int worker = job.joined++;
      if (job.joined >= job.workers) pop(&job);
      job.helping.fetch_add(1);
      lock.unlock();
      job.work(worker);
      lock.lock();
      pop(&job);
      // Under the lock, so that the caller cannot leave run() between the decrement and the notify.
      if (job.helping.fetch_sub(1) == 1) finished.notify_all();
    }
  }

  void pop(Job* job) {
    const auto found = std::find(queue.begin(), queue.end(), job);
    if (found != queue.end()) queue.erase(found);
    queued.store(static_cast<int>(queue.size()), std::memory_order_relaxed);
  }

  void run(Job& job) {
    {
      std::lock_guard lock(mutex);
      start_threads();
      queue.push_back(&job);
      queued.store(static_cast<int>(queue.size()), std::memory_order_relaxed);
    }
    wake.notify_all();
    job.work(0);
    std::unique_lock lock(mutex);
    pop(&job);
    if (job.helping.load() == 0) return;
    lock.unlock();
    spin_until([&job] { return job.helping.load() == 0; });
    lock.lock();
    finished.wait(lock, [&job] { return job.helping.load() == 0; });
  }
};

ThreadPool::ThreadPool(int threads) : state_(new State(std::max(1, threads))) {}

ThreadPool::~ThreadPool() {
  if (!state_.is_own()) return;
  State& state = current();
  {
    std::lock_guard lock(state.mutex);
    state.stop = true;
  }
  state.wake.notify_all();
  for (std::thread& thread : state.threads) thread.join();
}

int ThreadPool::threads() const noexcept {
  return state_.as_made().size;
}

ThreadPool::State& ThreadPool::current() {
  return state_.current([](const State& parents) { return new State(parents.size); });
}

void ThreadPool::run(std::int64_t tasks, TaskRef task, int max_workers) {
  if (tasks <= 0) return;
  State& state = current();
  const int limit = max_workers > 0 ? std::min(max_workers, state.size) : state.size;
  Job job(task, tasks, static_cast<int>(std::min<std::int64_t>(limit, tasks)));
  if (job.workers == 1) return job.work(0);
  state.run(job);
}

}  // namespace flashlab::internal
