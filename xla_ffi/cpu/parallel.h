// How the kernels use threads: through this interface, to which the handlers adapt XLA's pool.
#pragma once

#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

namespace zen {

class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual int64_t threads() const = 0;
  // Calls body(0) .. body(tasks - 1), in any order and on any thread, and returns when all have returned.
  virtual void run(int64_t tasks, const std::function<void(int64_t)>& body) const = 0;

  // What body(0) .. body(tasks - 1) return. This keeps what a task counts or collects in its local variables: side by
  // side in a vector, it would lie in cache lines that other threads write to all along.
  template <typename Body>
  auto results(int64_t tasks, Body&& body) const {
    static_assert(!std::is_same_v<decltype(body(tasks)), bool>, "std::vector<bool> shares bytes among tasks");
    std::vector<decltype(body(tasks))> results(tasks);
    run(tasks, [&](int64_t task) { results[task] = body(task); });
    return results;
  }
};

class Serial final : public Parallel {
 public:
  int64_t threads() const override { return 1; }
  void run(int64_t tasks, const std::function<void(int64_t)>& body) const override {
    for (int64_t task = 0; task < tasks; ++task) body(task);
  }
};

}  // namespace zen
