// Goes chunk by chunk with the state S [dk, dv] in cache; delta_chunk.h has A, P and u:
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
  using Base::Base, Base::q, Base::k, Base::erase, Base::write, Base::g, Base::heads, Base::group, Base::n, Base::dk,
      Base::dv, Base::chunk, Base::chunks, Base::sides, Base::precision;
  using Memory = typename Base::Memory;

  void run(HeadView<T> out, T* all, T* states) const {
    parallel_for(this->batch * heads, 1, [&](int64_t begin, int64_t end) {
      Memory w(*this);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t b = task / heads, h = task % heads;
        T* const state = all + task * dk * dv;
        for (int64_t i = 0; i < chunks; ++i) {
          const int64_t first = i * chunk, count = std::min(chunk, n - first);
          if (states) std::copy_n(state, dk * dv, states + (task * chunks + i) * dk * dv);
          if (count <= Base::kFewSteps) vectorised([&] { steps(w, b, h, first, count, state, out); });
          else one_chunk(w, b, h, first, count, state, out);
        }
      }
    });
  }

  void one_chunk(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, T* state, HeadView<T>& out) const {
    this->enter(w, b, h, first, count);
    this->solve(w, b, h, first, count, state, sides * count);
    T* const o = out.at(b, h, first);
    const T* const known = sides == 2 ? w.r + count * dv : w.u;
    vectorised([&] {
      for (int64_t t = 0; t < count; ++t)
        for (int64_t c = 0; c < dv; ++c) o[t * out.row + c] = (sides == 2 ? w.here[t] : T(1)) * known[t * dv + c];
    });
    if (sides == 2) {
      masked_product(Trans::no, count, dv, count, w.pairs + count * count, count, w.u, dv, true, o, out.row, precision);
    }
    this->scale_rows(w.left, w.u, count, dv);
    this->next_state(w, state, count, count, this->carried_rows(w), w.u);
  }

  /// Step by step, for the few tokens of a stream.
  void steps(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, T* state, HeadView<T>& out) const {
    for (int64_t t = first; t < first + count; ++t) {
      const T *e = erase.at(b, h, t), *key = k.at(b, h / group, t), *query = q.at(b, h / group, t);
      const T* const written = write.at(b, h, t);
      const T* const decays = g ? this->decay_at(b, h, t) : nullptr;
      T *const u = w.u, *const y = out.at(b, h, t);
      std::fill_n(w.r, dv, T(0));
      for (int64_t c = 0; c < dk; ++c) {
        T* const row = state + c * dv;
        const T kept = decays ? math::exp(decays[this->decay == DeltaDecay::channels ? c : 0]) : T(1), erased = e[c];
        for (int64_t j = 0; j < dv; ++j) row[j] *= kept, w.r[j] += erased * row[j];
      }
      for (int64_t j = 0; j < dv; ++j) u[j] = written[j] - w.r[j];
      std::fill_n(w.r, dv, T(0));
      for (int64_t c = 0; c < dk; ++c) {
        T* const row = state + c * dv;
        for (int64_t j = 0; j < dv; ++j) row[j] += key[c] * u[j], w.r[j] += query[c] * row[j];
      }
      std::copy_n(sides == 2 ? w.r : u, dv, y);
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

// Counts the recurrence, three products of dk × dv a step. As for linear_scan, pairs are not counted.
constinit decltype(kernel::delta_scan) kernel::delta_scan{
    "delta_scan", &detail::delta_scan_cpu,
    [](const Tensor&, const Tensor& k, const Tensor&, const Tensor& write, const Tensor&, int64_t, Tensor&, Tensor&,
       Tensor&) { return Work{.flops = 6 * checked_mul("delta_scan", write.numel(), k.dim(3))}; }};

}  // namespace sluice
