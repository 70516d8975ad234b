// The gradients of delta_scan and linear_scan. From the last chunk to the first, with X = dL/dS after the chunk. G
// stands for −dw behind it do, rows for the rows of x, and dA, dP for what G uᵀ leaves of the pairs that count:
//
//   du = Pᵀ do + k̃ X            dw = (I + A)⁻ᵀ du           [dA | dP] = G uᵀ
//   dx = e^L ∘ (G Sᵀ) + Σ_j [dA | dP]_tj e^{L_t − L_j} k_j
//   dk = e^{L_end − L} ∘ (u Xᵀ) + Σ_t [dA | dP]_tj e^{L_t − L_j} x_t
//   dg_s = Σ_{t >= s} x_t ⊙ dx_t − k_t ⊙ dk_t, within the chunk, + Σ S_after ⊙ X
//
// A step's pair with itself, dP_tt, stands in both terms of dg, and no decay weakens it: beside strong decays its
// rounding errors would be larger than all that is left. dx and dk have it only after dg is known.
//   X ← e^{L_end} ∘ X + (x ∘ e^L)ᵀ G
//
// linear_scan has no e, no A, and u = w = v. Its forward pass keeps no states: a sweep over k and v makes those of a
// head again, for as little as it would take to write and read them.
#include <sluice/ops/scan/delta_scan.h>

#include <sluice/ops/kernels.h>
#include <sluice/ops/scan/delta_chunk.h>

namespace sluice {

namespace detail {

namespace {

template <class T> struct DeltaBackward : DeltaOperands<T> {
  using Base = DeltaOperands<T>;
  using Base::Base, Base::g, Base::decay, Base::heads, Base::group, Base::n, Base::dk, Base::dv, Base::chunk,
      Base::chunks, Base::erases, Base::sides, Base::precision;

  struct Results {
    HeadView<T> q, k, erase, write;
    T* g;
    int64_t summed;  // so many value heads share dq and dk
  };
  struct Memory : Base::Memory {
    Scratch<T> more;
    T* rows;    // [2c, dv], G
    T* du;      // [c, dv]
    T* dx;      // [2c, dk]
    T* dk_;     // [c, dk]
    T* d;       // [2c, c], dA and dP
    T* own;     // [c], dP_tt
    T* turned;  // [c, c + 2 dk]: decays by channel read backwards
    T* states;  // [chunks, dk, dv], and X; linear_scan only
    explicit Memory(const DeltaBackward& o)
        : Base::Memory(o),
          more(o.chunk * (3 * o.dv + 5 * o.dk + 3 * o.chunk + 1) + (o.erases ? 0 : (o.chunks + 1) * o.dk * o.dv)) {
      rows = more.data(), du = rows + 2 * o.chunk * o.dv, dx = du + o.chunk * o.dv, dk_ = dx + 2 * o.chunk * o.dk,
      d = dk_ + o.chunk * o.dk, own = d + 2 * o.chunk * o.chunk, turned = own + o.chunk,
      states = turned + o.chunk * (o.chunk + 2 * o.dk);
    }
  };

  /// With the states of delta_scan's forward call, the one after it, and its gradient; all null for linear_scan.
  void run(const T* states, const T* last, HeadView<const T> dout, T* dstate, Results results) const {
    const int64_t size = dk * dv;
    parallel_for(this->batch * heads / results.summed, 1, [&](int64_t begin, int64_t end) {
      Memory w(*this);
      for (int64_t task = begin * results.summed; task < end * results.summed; ++task) {
        const int64_t b = task / heads, h = task % heads;
        const T* const here = states ? states + task * chunks * size : remade_states(w, b, h);
        T* const x_state = dstate ? dstate + task * size : w.states + chunks * size;
        if (!dstate) std::fill_n(x_state, size, T(0));
        for (int64_t i = chunks - 1; i >= 0; --i) {
          const int64_t first = i * chunk, count = std::min(chunk, n - first);
          const T* const after = i + 1 < chunks ? here + (i + 1) * size : last ? last + task * size : nullptr;
          one_chunk(w, b, h, first, count, here + i * size, after, dout, x_state, results);
        }
      }
    });
  }

  /// S before each chunk, of linear_scan.
  const T* remade_states(Memory& w, int64_t b, int64_t h) const {
    const int64_t size = dk * dv;
    std::fill_n(w.states, size, T(0));
    for (int64_t i = 0; i + 1 < chunks; ++i) {
      T* const next = w.states + (i + 1) * size;
      std::copy_n(next - size, size, next);
      this->load(w.keys, this->k, dk, b, h / group, i * chunk, chunk);
      this->load(w.u, this->write, dv, b, h, i * chunk, chunk);
      this->load_decays(w, b, h, i * chunk, chunk);
      this->scale_rows(w.left, w.u, chunk, dv);
      if (decay == DeltaDecay::channels) vectorised([&] { carry(w); });
      this->next_state(w, next, chunk, chunk, this->carried_rows(w), w.u);
    }
    return w.states;
  }

  /// What a decay by channel leaves of a whole chunk's keys and of the state before it.
  void carry(Memory& w) const {
    const double* const whole = w.sums + (chunk - 1) * dk;
    for (int64_t c = 0; c < dk; ++c) w.end[c] = math::exp(T(whole[c]));
    for (int64_t t = 0; t < chunk; ++t)
      for (int64_t c = 0; c < dk; ++c)
        w.carried[t * dk + c] = w.keys[t * dk + c] * math::exp(T(whole[c] - w.sums[t * dk + c]));
  }

  void one_chunk(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, const T* state, const T* after,
                 HeadView<const T>& dout, T* x_state, Results& results) const {
    const int64_t q_rows = (sides - 1) * count;  // rows of x before those of q
    this->enter(w, b, h, first, count);
    if (erases) this->solve(w, b, h, first, count, state, count);
    else this->load(w.u, this->write, dv, b, h, first, count);
    T *const minus_dw = w.rows, *const out = w.rows + q_rows * dv;
    this->load(out, dout, dv, b, h, first, count);
    gemm(Trans::no, Trans::no, count, dv, dk, T(1), this->carried_rows(w), dk, x_state, dv, T(0), w.du, dv, precision);
    this->scale_rows(w.left, w.du, count, dv);
    masked_product(Trans::yes, count, dv, count, w.pairs + q_rows * count, count, out, dv, true, w.du, dv, precision);
    if (erases) solve_unit_lower(Trans::yes, count, w.pairs, count, w.du, dv, dv, w.solver);
    vectorised([&] {
      for (int64_t t = 0; t < count; ++t) {
        std::copy_n(w.du + t * dv, dv, results.write.at(b, h, first + t));
        for (int64_t c = 0; erases && c < dv; ++c) minus_dw[t * dv + c] = -w.du[t * dv + c];
      }
    });
    gemm(Trans::no, Trans::yes, sides * count, count, dv, T(1), w.rows, dv, w.u, dv, T(0), w.d, count, precision);
    for (int64_t t = 0; t < count; ++t) {
      T* const line = w.d + (q_rows + t) * count;
      w.own[t] = line[t];
      std::fill(line + t, line + count, T(0));
      if (erases) std::fill(w.d + t * count + t, w.d + (t + 1) * count, T(0));
    }
    for (int64_t side = 0; side < sides; ++side) this->scale_rows(w.here, w.rows + side * count * dv, count, dv);
    this->scale_rows(w.left, w.u, count, dv);
    gemm(Trans::no, Trans::yes, sides * count, dk, dv, T(1), w.rows, dv, state, dv, T(0), w.dx, dk, precision);
    gemm(Trans::no, Trans::yes, count, dk, dv, T(1), w.u, dv, x_state, dv, T(0), w.dk_, dk, precision);
    if (decay == DeltaDecay::channels) by_channels(w, count);
    else by_scalar(w, count);
    vectorised([&] {
      store(w, b, h, first, count, results);
      if (results.g) store_decay(w, b, h, first, count, after, x_state, results.g);
    });
    this->next_state(w, x_state, count, sides * count, this->far_rows(w), w.rows);
  }

  void by_scalar(Memory& w, int64_t count) const {
    if (g)
      vectorised([&] {
        for (int64_t side = 0; side < sides; ++side)
          for (int64_t t = 0; t < count; ++t)
            for (int64_t j = 0; j <= t; ++j) w.d[(side * count + t) * count + j] *= w.weight[t * count + j];
      });
    masked_product(Trans::no, sides * count, dk, count, w.d, count, w.keys, dk, true, w.dx, dk, precision);
    masked_product(Trans::yes, count, dk, sides * count, w.d, count, w.x, dk, true, w.dk_, dk, precision);
  }

  void by_channels(Memory& w, int64_t count) const {
    for (int64_t side = 0; side < sides; ++side)
      sum_by_values<T>(w, w.d + side * count * count, w.keys, dk, count, w.dx + side * count * dk, precision);
    // The sums over later steps are the same, read backwards: from t to j < t the decays g_{j+1} … g_t pass.
    T *const pairs = w.turned, *const rows = pairs + count * count, *const sum = rows + count * dk;
    for (int64_t t = 0; t < count / 2; ++t)
      std::swap_ranges(w.step + t * dk, w.step + (t + 1) * dk, w.step + (count - 1 - t) * dk);
    std::copy_backward(w.step, w.step + (count - 1) * dk, w.step + count * dk);
    std::fill_n(w.step, dk, T(0));
    for (int64_t t = 0; t < count; ++t)
      for (int64_t c = 0; c < dk; ++c) w.sums[t * dk + c] = w.sums[(t - 1) * dk + c] + double(w.step[t * dk + c]);
    for (int64_t side = 0; side < sides; ++side) {
      const T *d = w.d + side * count * count, *x = w.x + side * count * dk;
      for (int64_t t = 0; t < count; ++t) {
        for (int64_t j = 0; j < count; ++j) pairs[t * count + j] = d[(count - 1 - j) * count + count - 1 - t];
        std::copy_n(x + (count - 1 - t) * dk, dk, rows + t * dk);
        if (side == 0) std::copy_n(w.dk_ + (count - 1 - t) * dk, dk, sum + t * dk);
        else std::fill_n(sum + t * dk, dk, T(0));
      }
      sum_by_values<T>(w, pairs, rows, dk, count, sum, precision);
      for (int64_t t = 0; t < count; ++t)
        for (int64_t c = 0; c < dk; ++c) {
          T& to = w.dk_[(count - 1 - t) * dk + c];
          to = side == 0 ? sum[t * dk + c] : to + sum[t * dk + c];
        }
    }
  }

  void store(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, Results& results) const {
    const int64_t q_rows = (sides - 1) * count, of = h / results.summed;
    const bool more = h % results.summed > 0;
    for (int64_t t = 0; t < count; ++t) {
      if (erases) std::copy_n(w.dx + t * dk, dk, results.erase.at(b, h, first + t));
      T *const dq = results.q.at(b, of, first + t), *const dkey = results.k.at(b, of, first + t);
      const T *const by_q = w.dx + (q_rows + t) * dk, *const by_k = w.dk_ + t * dk;
      const T *const query = w.x + (q_rows + t) * dk, *const key = w.keys + t * dk, own = w.own[t];
      for (int64_t c = 0; c < dk; ++c) dq[c] = (more ? dq[c] : T(0)) + (by_q[c] + own * key[c]);
      for (int64_t c = 0; c < dk; ++c) dkey[c] = (more ? dkey[c] : T(0)) + (by_k[c] + own * query[c]);
    }
  }

  void store_decay(Memory& w, int64_t b, int64_t h, int64_t first, int64_t count, const T* after, const T* x_state,
                   T* results) const {
    const bool by_channel = decay == DeltaDecay::channels;
    const int64_t width = this->channels();
    T* const sum = w.part;  // of a channel, or of all
    T whole = 0;
    for (int64_t c = 0; c < dk; ++c) {
      sum[c] = after ? row_dot(after + c * dv, x_state + c * dv, dv) : T(0);
      whole += sum[c];
    }
    if (!by_channel) sum[0] = whole;
    const T* const given = this->decay_at(b, h, first);
    T* const to = results + (given - g);
    for (int64_t t = count - 1; t >= 0; --t) {
      const T *key = w.keys + t * dk, *dkey = w.dk_ + t * dk;
      for (int64_t side = 0; side < sides; ++side) {
        const T *x = w.x + (side * count + t) * dk, *dx = w.dx + (side * count + t) * dk,
                less = side == 0 ? T(1) : T(0);
        const auto term = [=](int64_t c) { return x[c] * dx[c] - less * (key[c] * dkey[c]); };
        if (!by_channel) sum[0] += row_total<T>(dk, term);
        else
          for (int64_t c = 0; c < dk; ++c) sum[c] += term(c);
      }
      for (int64_t c = 0; c < width; ++c) to[t * width + c] = given[t * width + c] > T(-1e4) ? sum[c] : T(0);
    }
  }
};

template <class T> T* data_or_null(Tensor& x) { return x.defined() ? x.mutable_data<T>() : nullptr; }

void delta_scan_backward_cpu(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write,
                             const Tensor& g, const Tensor& states, const Tensor& last, const Tensor& dout,
                             int64_t chunk, Tensor& dq, Tensor& dk, Tensor& derase, Tensor& dwrite, Tensor& dg,
                             Tensor& dstate) {
  dispatch_float("delta_scan", k.dtype(), [&]<class T>() {
    DeltaBackward<T>(q, k, erase, write, g, chunk)
        .run(states.data<T>(), last.data<T>(), HeadView<const T>(dout), dstate.mutable_data<T>(),
             {HeadView<T>(dq), HeadView<T>(dk), HeadView<T>(derase), HeadView<T>(dwrite), data_or_null<T>(dg),
              write.dim(1) / dq.dim(1)});
  });
}

void linear_scan_backward_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& dout,
                              int64_t chunk, Tensor& dq, Tensor& dk, Tensor& dv, Tensor& dg) {
  dispatch_float("linear_scan", k.dtype(), [&]<class T>() {
    DeltaBackward<T>(q, k, {}, v, g, chunk)
        .run(nullptr, nullptr, HeadView<const T>(dout), nullptr,
             {HeadView<T>(dq), HeadView<T>(dk), {}, HeadView<T>(dv), data_or_null<T>(dg), v.dim(1) / dq.dim(1)});
  });
}

}  // namespace

}  // namespace detail

// Five products of m × e a step, S among them.
constinit decltype(kernel::linear_scan_backward) kernel::linear_scan_backward{
    "linear_scan", &detail::linear_scan_backward_cpu,
    [](const Tensor&, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&, int64_t, Tensor&, Tensor&,
       Tensor&, Tensor&) { return Work{.flops = 10 * checked_mul("linear_scan", v.numel(), k.dim(3))}; }};

// Seven products of dk × dv a step.
constinit decltype(kernel::delta_scan_backward) kernel::delta_scan_backward{
    "delta_scan", &detail::delta_scan_backward_cpu,
    [](const Tensor&, const Tensor& k, const Tensor&, const Tensor& write, const Tensor&, const Tensor&, const Tensor&,
       const Tensor&, int64_t, Tensor&, Tensor&, Tensor&, Tensor&, Tensor&,
       Tensor&) { return Work{.flops = 14 * checked_mul("delta_scan", write.numel(), k.dim(3))}; }};

}  // namespace sluice
