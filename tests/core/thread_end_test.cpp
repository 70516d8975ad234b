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

#include <atomic>
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

TEST_CASE("a thread that starts when there is no memory left throws", "[allocator]") {
#if defined(__SANITIZE_ADDRESS__)
  return;  // it needs its address space
#endif
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
