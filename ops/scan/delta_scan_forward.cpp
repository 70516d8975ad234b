// Goes chunk by chunk with the state S [key_width, value_width] in cache; delta_chunk.h has A, P and u:
//
//   o = (q ∘ e^L) S + P u
//   S ← e^{L_end} ∘ S + (k ∘ e^{L_end − L})ᵀ u
#include <sluice/ops/scan/delta_scan.h>

#include <sluice/ops/kernels.h>
#include <sluice/ops/scan/delta_chunk.h>

namespace sluice {

namespace detail {

namespace {

template <class T> struct DeltaForward : DeltaOperands<T> {
  using Base = DeltaOperands<T>;
  using Base::Base, Base::q, Base::k, Base::erase, Base::write, Base::g, Base::heads, Base::group, Base::n,
      Base::key_width, Base::value_width, Base::chunk, Base::chunks, Base::sides, Base::precision, Base::steps;
  using Memory = typename Base::Memory;

  void run(HeadView<T> out, T* all, T* states) const {
    parallel_for(this->batch * heads, 1, [&](int64_t begin, int64_t end) {
      Memory m(*this);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t b = task / heads, h = task % heads;
        T* const state = all + task * key_width * value_width;
        const TotalDecays<T> total = this->total_decays(b, h);
        for (int64_t i = 0; i < chunks; ++i) {
          const int64_t first = i * chunk, count = std::min(chunk, n - first);
          if (states)
            std::copy_n(state, key_width * value_width, states + (task * chunks + i) * key_width * value_width);
          each_piece(total, first, first + count, false, [&](int64_t at, int64_t some) {
            const bool anew = total(at) || (at == 0 && Base::is_zero(state, key_width * value_width));
            if (anew) std::fill_n(state, key_width * value_width, T(0));
            for (int64_t from = at, end = at + some; from < end; from += steps) {
              const int64_t part = std::min(steps, end - from);
              if (part <= Base::kFewSteps) vectorised([&] { by_steps(m, b, h, from, part, state, out); });
              else one_part(m, b, h, from, part, anew && from == at, state, out);
            }
          });
        }
      }
    });
  }

  /// anew: the state is zeros. Not inlined: parallel_for() would compile all of it for each instruction set, which only
  /// its loops need.
  [[gnu::noinline]] void one_part(Memory& m, int64_t b, int64_t h, int64_t first, int64_t count, bool anew, T* state,
                                  HeadView<T>& out) const {
    this->look_ahead(m, b, h, first + count, 5), m.ahead.add(b, h, 0, value_width, out);
    this->enter(m, b, h, first, count);
    this->solve(m, b, h, first, count, anew ? nullptr : state, sides * count);
    T* const o = out.at(b, h, first);
    const T* const known = sides == 2 ? m.r + count * value_width : m.u;
    vectorised([&] {
      for (int64_t t = 0; t < count; ++t) {
        const T *const from = known + t * value_width, kept = sides == 2 ? m.here[t] : T(1);
        T* const to = o + t * out.row;
        for (int64_t c = 0; c < value_width; ++c) to[c] = kept * from[c];
      }
    });
    m.ahead.fetch();
    if (sides == 2)
      masked_product(Trans::no, Pairs::earlier, count, value_width, m.pairs + count * count, m.u, value_width, true, o,
                     out.row, precision);
    this->scale_rows(m.left, m.u, count, value_width);
    this->next_state(m, state, count, count, this->carried_rows(m), m.u);
  }

  /// Step by step, for the few tokens of a stream.
  void by_steps(Memory& m, int64_t b, int64_t h, int64_t first, int64_t count, T* state, HeadView<T>& out) const {
    for (int64_t t = first; t < first + count; ++t) {
      const T *e = erase.at(b, h, t), *key = k.at(b, h / group, t), *query = q.at(b, h / group, t);
      const T* const written = write.at(b, h, t);
      const T* const decays = g ? this->decay_at(b, h, t) : nullptr;
      T *const u = m.u, *const y = out.at(b, h, t);
      std::fill_n(m.r, value_width, T(0));
      for (int64_t c = 0; c < key_width; ++c) {
        T* const row = state + c * value_width;
        const T kept = decays ? math::exp(decays[this->decay == DeltaDecay::channels ? c : 0]) : T(1), erased = e[c];
        for (int64_t j = 0; j < value_width; ++j) row[j] *= kept, m.r[j] += erased * row[j];
      }
      for (int64_t j = 0; j < value_width; ++j) u[j] = written[j] - m.r[j];
      std::fill_n(m.r, value_width, T(0));
      for (int64_t c = 0; c < key_width; ++c) {
        T* const row = state + c * value_width;
        for (int64_t j = 0; j < value_width; ++j) row[j] += key[c] * u[j], m.r[j] += query[c] * row[j];
      }
      std::copy_n(sides == 2 ? m.r : u, value_width, y);
    }
  }
};

void delta_scan_cpu(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& g,
                    int64_t chunk, Tensor& out, Tensor& state, Tensor& states) {
  dispatch_float("delta_scan", k.dtype(), [&]<class T>() {
    DeltaForward<T>(q, k, erase, write, g, chunk)
        .run(HeadView<T>(out), state.mutable_data<T>(), states.defined() ? states.mutable_data<T>() : nullptr);
  });
}

}  // namespace

}  // namespace detail

// Counts the recurrence, three products of key_width × value_width a step. As for linear_scan, pairs are not counted.
constinit decltype(kernel::delta_scan) kernel::delta_scan{
    "delta_scan", &detail::delta_scan_cpu,
    [](const Tensor&, const Tensor& k, const Tensor&, const Tensor& write, const Tensor&, int64_t, Tensor&, Tensor&,
       Tensor&) { return Work{.flops = 6 * checked_mul("delta_scan", write.numel(), k.dim(3))}; }};

}  // namespace sluice
