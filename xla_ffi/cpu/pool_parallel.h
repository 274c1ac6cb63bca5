// Parallel over a pool that can only schedule. The caller works too and waits for tasks that have begun, never for
// helpers that the pool has not started: a pool whose only thread is the caller cannot deadlock.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "xla_ffi/cpu/parallel.h"

namespace zen {

// Pool::Schedule(std::function<void()>&&) runs the function at some time, on some thread.
template <typename Pool>
class PoolParallel final : public Parallel {
 public:
  PoolParallel(Pool& pool, int64_t threads) : pool_(pool), threads_(std::max<int64_t>(threads, 1)) {}

  int64_t threads() const override { return threads_; }

  void run(int64_t tasks, const std::function<void(int64_t)>& body) const override {
    if (tasks == 0) return;
    const auto job = std::make_shared<Job>(tasks, body);
    for (int64_t helper = 1; helper < std::min(threads_, tasks); ++helper) {
      try {
        pool_.Schedule(std::function<void()>([job] { job->work(); }));
      } catch (...) {  // no memory for a helper; those that run must not outlive `body`
        break;
      }
    }
    job->work();
    job->join();
  }

 private:
  // A helper that starts late finds no task left and never touches `body`, which may be gone by then.
  class Job {
   public:
    Job(int64_t tasks, const std::function<void(int64_t)>& body) : tasks_(tasks), body_(body) {}

    void work() {
      for (int64_t task; (task = next_.fetch_add(1)) < tasks_;) {
        std::exception_ptr error;
        try {
          body_(task);
        } catch (...) {
          error = std::current_exception();
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        if (error) error_ = error;
        if (++done_ == tasks_) all_done_.notify_one();
      }
    }

    void join() {
      std::unique_lock<std::mutex> lock(mutex_);
      all_done_.wait(lock, [this] { return done_ == tasks_; });
      if (error_) std::rethrow_exception(error_);
    }

   private:
    const int64_t tasks_;
    const std::function<void(int64_t)>& body_;
    std::atomic<int64_t> next_{0};
    std::mutex mutex_;
    std::condition_variable all_done_;
    int64_t done_ = 0;
    std::exception_ptr error_;
  };

  Pool& pool_;
  const int64_t threads_;
};

}  // namespace zen
