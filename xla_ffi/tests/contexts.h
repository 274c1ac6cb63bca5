// Every way to run a kernel: each instruction set of this machine with 1, 2 and 5 threads, cut into ranges however
// small.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "xla_ffi/cpu/context.h"
#include "xla_ffi/cpu/pool_parallel.h"

namespace zen {

// A plain pool: `count` threads, one queue.
class Threads {
 public:
  explicit Threads(int count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Threads() {
    Schedule(nullptr);
    for (std::thread& thread : threads_) thread.join();
  }

  void Schedule(std::function<void()>&& work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
    ready_.notify_all();
  }

 private:
  // An empty function ends a thread, and stays in the queue for the next one.
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      ready_.wait(lock, [this] { return !queue_.empty(); });
      if (!queue_.front()) return;
      const std::function<void()> next = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      next();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

inline void for_each_context(const std::function<void(const Context&, const std::string&)>& body) {
  static Threads pool(4);
  for (const Isa* isa : available_isas()) {
    for (int threads : {1, 2, 5}) {
      const PoolParallel<Threads> parallel(pool, threads);
      body(Context{*isa, parallel, 1}, std::string(isa->name) + ", " + std::to_string(threads) + " threads");
    }
  }
}

}  // namespace zen
