#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cuda/emulation/cuda_runtime.h"

namespace zen::emulation {
namespace {

const size_t kPage = sysconf(_SC_PAGESIZE);
// At a power of two from each other, the frames of all fibers would compete for the same lines of the caches.
constexpr size_t kStackBytes = (64 << 10) + 17 * 64;
constexpr int kLanes = 32;
constexpr long kMostIdleRounds = 1 << 22;

struct Warp {
  uint32_t offered[kLanes];
  uint32_t exchanged[kLanes];
  int arrived = 0;
  uint64_t generation = 0;
};

// A piece of memory that ends at an inaccessible page.
struct GuardedMemory {
  explicit GuardedMemory(size_t bytes) : mapped((bytes + kPage - 1) / kPage * kPage + kPage) {
    base =
        static_cast<unsigned char*>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base == MAP_FAILED) std::abort();
    mprotect(base + mapped - kPage, kPage, PROT_NONE);
    data = base + mapped - kPage - (bytes + 15) / 16 * 16;
  }
  ~GuardedMemory() { munmap(base, mapped); }
  GuardedMemory(const GuardedMemory&) = delete;

  size_t mapped;
  unsigned char* base;
  unsigned char* data;
};

struct Block;

struct Thread {
  Block* block = nullptr;
  unsigned index = 0;
  bool started = false;
  bool finished = false;
  const uint64_t* waits_for = nullptr;  // a generation that must move on from `seen`
  uint64_t seen = 0;
  jmp_buf resume;
};

// Stacks of finished blocks, kept warm for the next ones.
std::vector<std::unique_ptr<GuardedMemory>> spare_stacks;

std::unique_ptr<GuardedMemory> take_stacks(unsigned threads) {
  if (spare_stacks.empty()) return std::make_unique<GuardedMemory>(threads * kStackBytes);
  std::unique_ptr<GuardedMemory> stacks = std::move(spare_stacks.back());
  spare_stacks.pop_back();
  return stacks;
}

struct Block {
  Block(unsigned index, unsigned thread_count, size_t shared_bytes)
      : index(index),
        live(thread_count),
        threads(thread_count),
        warps((thread_count + kLanes - 1) / kLanes),
        shared(shared_bytes),
        stacks(take_stacks(thread_count)) {
    std::memset(shared.data, 0xa5, (shared_bytes + 15) / 16 * 16);
    for (unsigned i = 0; i < thread_count; ++i) {
      threads[i].block = this;
      threads[i].index = i;
    }
  }

  unsigned index;
  unsigned live;
  unsigned arrived = 0;
  uint64_t generation = 0;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  GuardedMemory shared;
  std::unique_ptr<GuardedMemory> stacks;
};

// A pass over a warp's lanes, each of which runs until it waits or yields and then hands over to the next.
struct Pass {
  Block* block;
  unsigned warp;
  unsigned first_lane;
  unsigned lanes_done = 0;
  bool ran = false;
};

uint64_t random_state = 1;
int resident_limit = 3;
Pass pass;
Thread* running = nullptr;
jmp_buf scheduler;
const std::function<void()>* current_kernel = nullptr;

uint32_t random_below(uint32_t bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return static_cast<uint32_t>((random_state >> 32) * bound >> 32);
}

void wait_for(const uint64_t* generation, uint64_t seen) {
  running->waits_for = generation;
  running->seen = seen;
  yield();
}

void release_barrier_if_complete(Block* block) {
  if (block->live == 0 || block->arrived < block->live) return;
  block->arrived = 0;
  ++block->generation;
}

bool is_runnable(const Thread& thread) {
  return !thread.finished && (thread.waits_for == nullptr || *thread.waits_for != thread.seen);
}

void run_thread();

[[noreturn]] void resume(Thread* thread) {
  running = thread;
  thread->waits_for = nullptr;
  if (thread->started) _longjmp(thread->resume, 1);
  thread->started = true;
  static ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = thread->block->stacks->data + thread->index * kStackBytes;
  context.uc_stack.ss_size = kStackBytes;
  makecontext(&context, run_thread, 0);
  setcontext(&context);
  std::abort();
}

// Goes on with the next runnable lane of the pass, or with the scheduler after the last.
[[noreturn]] void run_next_lane() {
  while (pass.lanes_done < kLanes) {
    const unsigned lane = (pass.first_lane + pass.lanes_done++) % kLanes;
    const unsigned index = pass.warp * kLanes + lane;
    if (index >= pass.block->threads.size() || !is_runnable(pass.block->threads[index])) continue;
    pass.ran = true;
    resume(&pass.block->threads[index]);
  }
  _longjmp(scheduler, 1);
}

void run_thread() {
  (*current_kernel)();
  Block* const block = running->block;
  running->finished = true;
  --block->live;
  release_barrier_if_complete(block);
  run_next_lane();
}

// Runs each runnable thread of a random warp, from a random lane on; returns whether there was any.
bool run_warp(Block* block) {
  pass = {block, random_below(static_cast<uint32_t>(block->warps.size())), random_below(kLanes)};
  if (_setjmp(scheduler) == 0) run_next_lane();
  return pass.ran;
}

}  // namespace

Index thread_index() { return {running->index}; }
Index block_index() { return {running->block->index}; }
unsigned char* shared_memory() { return running->block->shared.data; }

void check_global(const void* pointer) {
  const GuardedMemory& shared = running->block->shared;
  const auto* const byte = static_cast<const unsigned char*>(pointer);
  if (byte < shared.base || byte >= shared.base + shared.mapped) return;
  std::fprintf(stderr, "an instruction for global memory is given an address in shared memory\n");
  std::abort();
}

void yield() {
  if (_setjmp(running->resume) == 0) run_next_lane();
}

void maybe_yield() {
  if (random_below(8) == 0) yield();
}

void block_barrier() {
  Block* const block = running->block;
  const uint64_t seen = block->generation;
  ++block->arrived;
  release_barrier_if_complete(block);
  if (block->generation == seen) wait_for(&block->generation, seen);
}

const uint32_t* exchange(uint32_t value) {
  Warp& warp = running->block->warps[running->index / kLanes];
  const uint64_t seen = warp.generation;
  warp.offered[running->index % kLanes] = value;
  if (++warp.arrived == kLanes) {
    std::copy(warp.offered, warp.offered + kLanes, warp.exchanged);
    warp.arrived = 0;
    ++warp.generation;
  } else {
    wait_for(&warp.generation, seen);
  }
  return warp.exchanged;
}

void set_schedule(uint64_t seed, int resident_blocks) {
  random_state = seed * 2 + 1;
  resident_limit = resident_blocks;
}

cudaError_t run_grid(unsigned blocks, unsigned threads, size_t shared_bytes, const std::function<void()>& kernel) {
  if (blocks == 0) return cudaErrorInvalidConfiguration;
  current_kernel = &kernel;
  std::vector<std::unique_ptr<Block>> resident;
  unsigned next = 0;
  long idle = 0;
  while (next < blocks || !resident.empty()) {
    while (next < blocks && static_cast<int>(resident.size()) < resident_limit) {
      resident.push_back(std::make_unique<Block>(next++, threads, shared_bytes));
    }
    const uint32_t chosen = random_below(static_cast<uint32_t>(resident.size()));
    idle = run_warp(resident[chosen].get()) ? 0 : idle + 1;
    if (idle > kMostIdleRounds) {
      std::fprintf(stderr, "a block waits for a barrier or a warp that not all of its threads reach\n");
      std::abort();
    }
    if (resident[chosen]->live == 0) {
      spare_stacks.push_back(std::move(resident[chosen]->stacks));
      resident.erase(resident.begin() + chosen);
    }
  }
  return cudaSuccess;
}

}  // namespace zen::emulation
