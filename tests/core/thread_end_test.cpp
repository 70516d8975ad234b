// What a thread keeps for its kernels and gives back when it ends, and a thread that has no memory to begin with.
#include <sluice/core/memory/thread_end.h>
#include <sluice/core/memory/thread_memory.h>

#include "support/catch.h"
#include "support/child.h"
#include "support/limit.h"

#include <sluice/core/tensor.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/create.h>
#include <sluice/parallel/sequence.h>

#include <pthread.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace sluice;

TEST_CASE("thread_memory: is the thread's own, grows, and is there again when the thread's objects are gone",
          "[allocator]") {
  struct Here;
  const auto part = [](int which, std::size_t bytes) { return detail::thread_memory<Here, 2>(which, bytes); };
  struct Last {
    Tensor x, *y = nullptr;
    ~Last() {
      if (y) *y = softmax(x);
    }
  };
  const Tensor x = to(linspace(0, 3, 300), bf16);
  Tensor y;
  std::thread([&] {
    thread_local Last last;  // made before the thread's memory for rows, so that it goes after that
    last.x = x, last.y = &y;
    softmax(x);
    void *const first = part(0, 100), *const second = part(1, 100);
    CHECK(first != second);
    CHECK(part(0, 50) == first);
    std::memset(part(0, 100000), 1, 100000);
    std::memset(part(1, 100), 2, 100);
    CHECK(static_cast<const unsigned char*>(part(0, 100000))[99999] == 1);
    CHECK(part(1, 1) == second);
  }).join();
  CHECK(y.to_vector<float>() == softmax(x).to_vector<float>());
}

TEST_CASE("at_thread_end: what is noted runs once, the newest first, and again if it is noted again", "[allocator]") {
  static std::string order;
  static thread_local bool twice = false;
  constinit static thread_local detail::ThreadEnd first{[]() noexcept { order += "first "; }};
  constinit static thread_local detail::ThreadEnd second{[]() noexcept {
    order += "second ";
    if (std::exchange(twice, false)) detail::at_thread_end(second), detail::at_thread_end(first);
  }};
  struct Object {
    ~Object() { order += "object "; }
  };
  order.clear();
  std::thread([] {
    [[maybe_unused]] thread_local Object object;
    twice = true;
    for (int i = 0; i < 3; ++i) CHECK(detail::at_thread_end(first));
    CHECK(detail::at_thread_end(second));
  }).join();
  CHECK(order == "object second second first ");
}

TEST_CASE("at_thread_end: where nothing can be noted, it says so, and tensors work without a cache", "[allocator]") {
#if defined(__SANITIZE_ADDRESS__)
  return;  // which has a key of its own
#endif
  CHECK(testing::in_child([] {
          for (pthread_key_t key = 0; key < PTHREAD_KEYS_MAX; ++key) ::pthread_key_delete(key);  // as at unloading
          release_cached_memory();
          const MemoryStats before = memory_stats();
          std::string said = "no thread";
          std::thread([&] {
            constinit static thread_local detail::ThreadEnd late{[]() noexcept {}};
            said = detail::note_thread_end(late) || late.noted || detail::at_thread_end(late) ? "noted" : "";
            std::vector<Tensor> kept;
            for (int i = 0; i < 5000; ++i) {
              const Tensor y = softmax(full({5}, i));
              if (y.to_vector<float>() != std::vector<float>(5, 0.2f)) said = "wrong values";
              if (i % 100 == 0) kept.push_back(y);
            }
            for (const Tensor& y : kept)
              if (y.to_vector<float>() != std::vector<float>(5, 0.2f)) said = "overwritten values";
          }).join();
          release_cached_memory();
          const MemoryStats after = memory_stats();
          if (after.live != before.live) said += str(" live: ", before.live, ", then ", after.live);
          if (after.slabs > before.slabs + (1 << 18)) said += str(" slabs: ", before.slabs, ", then ", after.slabs);
          return said;
        }) == "");
}

TEST_CASE("a thread that starts when there is no memory left throws", "[allocator]") {
  if (!testing::MemoryLimit::works()) return;
  CHECK(testing::in_child([] {
          std::atomic<bool> none = false, done = false;
          std::atomic<bool> refused = false;
          std::thread late([&] {  // its stack is there already
            while (!none) std::this_thread::yield();
            try {
              const SequenceScope whole;
              std::vector<Tensor> all;
              while (true) all.push_back(softmax(full({3, 5}, 2.0)));  // a few blocks may lie in lists of all threads
            } catch (const MemoryError&) { refused = true; } catch (const std::bad_alloc&) {
              refused = true;
            }
            done = true;
          });
          release_cached_memory();
          {
            const testing::MemoryLimit limit(0);
            struct Block {
              Block* next;
            }* all = nullptr;
            for (std::size_t size = 1 << 20; size >= sizeof(Block); size /= 2)
              while (void* p = std::malloc(size)) all = ::new (p) Block{all};
            none = true;
            while (!done) std::this_thread::yield();
            while (all) std::free(std::exchange(all, all->next));
          }
          late.join();
          return refused ? "" : "there was memory";
        }) == "");
}
