// PoolParallel runs every task once, returns results in order, never waits for a pool that starts nothing, and passes
// errors to the caller.
#include <atomic>
#include <deque>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "xla_ffi/cpu/pool_parallel.h"
#include "xla_ffi/tests/check.h"
#include "xla_ffi/tests/contexts.h"

namespace zen {
namespace {

// Runs scheduled work only when told to, like a pool whose threads are all busy.
class BusyPool {
 public:
  void Schedule(std::function<void()>&& work) { waiting_.push_back(std::move(work)); }
  void run_all() {
    for (auto& work : waiting_) work();
  }

 private:
  std::deque<std::function<void()>> waiting_;
};

void test_every_task_once() {
  Threads pool(3);
  for (int threads : {1, 2, 5}) {
    for (int tasks : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> runs(tasks);
      PoolParallel<Threads>(pool, threads).run(tasks, [&](int64_t task) { ++runs[task]; });
      for (const auto& count : runs) ZEN_CHECK(count == 1);
    }
  }
}

void test_results_in_order() {
  Threads pool(3);
  const std::vector<int64_t> squares = PoolParallel<Threads>(pool, 4).results(100, [](int64_t i) { return i * i; });
  ZEN_CHECK(squares.size() == 100);
  for (int64_t i = 0; i < 100; ++i) ZEN_CHECK(squares[i] == i * i);
}

void test_busy_pool() {
  BusyPool pool;
  int done = 0;
  {
    const std::vector<int> gone_afterwards(10, 1);
    PoolParallel<BusyPool>(pool, 4).run(10, [&](int64_t task) { done += gone_afterwards[task]; });
  }
  ZEN_CHECK(done == 10);
  pool.run_all();
  ZEN_CHECK(done == 10);
}

void test_error() {
  Threads pool(1);
  std::atomic<int> done = 0;
  bool caught = false;
  try {
    PoolParallel<Threads>(pool, 2).run(10, [&](int64_t task) {
      ++done;
      if (task == 3) throw std::runtime_error("no");
    });
  } catch (const std::runtime_error&) {
    caught = true;
  }
  ZEN_CHECK(caught && done == 10);
}

}  // namespace
}  // namespace zen

int main() {
  zen::test_every_task_once();
  zen::test_results_in_order();
  zen::test_busy_pool();
  zen::test_error();
  return zen::test_result();
}
