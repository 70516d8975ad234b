// Deterministic parallel loops over TBB. Work is cut by shape alone — never by the number of
// threads — so every result is bit-identical for any thread count.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace sluice {

/// Number of threads that parallel loops may use; 0 in set_num_threads means one per core.
int num_threads();
void set_num_threads(int n);

namespace detail {
void parallel_chunks(int64_t chunks, void (*body)(void*, int64_t), void* context);
}

/// Calls f(begin, end) for consecutive pieces of [0, n) of `grain` items (the last may be shorter),
/// possibly at the same time. Exceptions thrown by f reach the caller.
template <class F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  if (n <= grain) return f(int64_t{0}, n);
  struct Context {
    std::remove_reference_t<F>* f;
    int64_t n, grain;
  } context{std::addressof(f), n, grain};
  detail::parallel_chunks(
      (n + grain - 1) / grain,
      [](void* p, int64_t chunk) {
        auto& c = *static_cast<Context*>(p);
        int64_t begin = chunk * c.grain;
        (*c.f)(begin, begin + c.grain < c.n ? begin + c.grain : c.n);
      },
      &context);
}

}  // namespace sluice
