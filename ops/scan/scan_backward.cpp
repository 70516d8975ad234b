// The gradients of delta_scan and linear_scan, from the last chunk to the first, with X = dL/dS after the chunk. The
// rows of G are −dw, then do, as those of x are e, then q. dA and dP are the entries of G uᵀ for the pairs that count:
//
//   du = Pᵀ do + (k ∘ e^{L_end − L}) X
//   dw = (I + A)⁻ᵀ du
//   [dA | dP] = G uᵀ
//   dx = e^L ∘ (G Sᵀ) + Σ_j [dA | dP]_tj e^{L_t − L_j} k_j
//   dk = e^{L_end − L} ∘ (u Xᵀ) + Σ_t [dA | dP]_tj e^{L_t − L_j} x_t
//   X ← e^{L_end} ∘ X + (x ∘ e^L)ᵀ G
//
// g_s scales all that passes step s: S and earlier steps on their way to later ones and to X. Within the chunk, with
// the parts p_t = k_t ⊙ e^{L_end − L_t} ∘ (u_t Xᵀ) of k ⊙ dk and r_t = x_t ⊙ e^{L_t} ∘ (G_t Sᵀ) of x ⊙ dx,
//
//   dg_s = Σ_{t >= s} Σ_{j < s} [A | P]_tj [dA | dP]_tj + Σ_{t >= s} r_t + Σ_{j < s} p_j + e^{L_end} ∘ Σ S ⊙ X
//
// where each term is as small as g_s makes it. By channel, the first sum would take each pair of steps times each
// channel. There it is Σ_{t >= s} (x_t ⊙ dx_t − r_t) − (k_t ⊙ dk_t − p_t): the pairs with t >= s less those with j >=
// s. The pair of a step with itself, dP_tt, passes no g_s, and no decay weakens it: if it were added and subtracted
// again, its rounding errors could be larger than all that is left. So dx and dk get dP_tt only after dg is known.
//
// linear_scan has no e, no A, and u = w = v. Its forward pass keeps no states: a sweep over k and v recomputes those of
// a head, which takes as little time as writing and reading them. Heads of v that share q and k share q_t·k_j, too, and
// with D = Σ over these heads of dP_tj e^{L_t − L_j}, their pairs are one product in dq, D k, and one in dk, Dᵀ q.
#include <sluice/ops/scan/delta_scan.h>

#include <sluice/ops/kernels.h>
#include <sluice/ops/scan/column_backward.h>
#include <sluice/ops/scan/delta_chunk.h>

#include <vector>

namespace sluice {

namespace detail {

namespace {

template <class T> struct DeltaBackward : DeltaOperands<T> {
  using Base = DeltaOperands<T>;
  using Base::Base, Base::g, Base::decay, Base::heads, Base::group, Base::n, Base::key_width, Base::value_width,
      Base::chunk, Base::chunks, Base::erases, Base::sides, Base::precision, Base::steps, Base::is_zero;

  struct Results {
    HeadView<T> q, k, erase, write;
    T* g;
    int64_t summed;  // number of value heads that share dq and dk
  };
  struct Memory : Base::Memory {
    Scratch<T> more;
    T* rows;        // [2c, value_width], G
    T* du;          // [c, value_width], then dw
    T* dx;          // [2c, key_width]; dx and dk lack the pairs of a step with itself
    T* dk;          // [c, key_width]
    T* d;           // [2c, c], dA and dP
    T* own;         // [c], dP_tt
    T* through;     // [c], Σ_{t >= s} [A | P]_tj [dA | dP]_tj; decays of whole states only
    T* passing;     // [c, key_width], p; decays by channel only
    T* later;       // [2c, key_width]: decays by channel only
    T* states;      // [chunks, key_width, value_width], and X; linear_scan only
    T* after;       // [key_width, value_width], S after the part; only if a chunk has several
    T* every_pair;  // [chunks, c, c], q_t·k_j; only if heads share them, as the next
    T* every_d;     // [chunks, c, c], D
    explicit Memory(const DeltaBackward& o, bool shares)
        : Base::Memory(o), more({{rows, 2 * o.steps * o.value_width},
                                 {du, o.steps * o.value_width},
                                 {dx, 2 * o.steps * o.key_width},
                                 {dk, o.steps * o.key_width},
                                 {d, 2 * o.steps * o.steps},
                                 {own, o.steps},
                                 {through, o.steps},
                                 {passing, o.steps * o.key_width},
                                 {later, 2 * o.steps * o.key_width},
                                 {states, o.erases ? 0 : (o.chunks + 1) * o.key_width * o.value_width},
                                 {after, o.steps < o.chunk ? o.key_width * o.value_width : 0},
                                 {every_pair, shares ? o.chunks * o.chunk * o.chunk : 0},
                                 {every_d, shares ? o.chunks * o.chunk * o.chunk : 0}}) {}
  };

  /// states: from delta_scan's forward call; dstate: gradient of the last state. Both are null for linear_scan.
  void run(const T* states, HeadView<const T> dout, T* dstate, Results results) const {
    const int64_t size = key_width * value_width;
    const bool shares = !erases && results.summed > 1 && decay != DeltaDecay::channels;
    parallel_for(this->batch * heads / results.summed, 1, [&](int64_t begin, int64_t end) {
      std::vector<Memory> parts;  // of a chunk
      for (int64_t i = 0; i < chunk; i += steps) parts.emplace_back(*this, shares);
      Memory& m = parts[0];
      for (int64_t task = begin * results.summed; task < end * results.summed; ++task) {
        const int64_t b = task / heads, h = task % heads;
        if (shares && h % results.summed == 0) share_pairs(m, b, h);
        const T* const here = states ? states + task * chunks * size : remade_states(m, b, h);
        T* const x_state = dstate ? dstate + task * size : m.states + chunks * size;
        if (!dstate) std::fill_n(x_state, size, T(0));
        const TotalDecays<T> total = this->total_decays(b, h);
        bool nothing_later = is_zero(x_state, size);
        for (int64_t i = chunks - 1; i >= 0; --i) {
          const int64_t begin_of = i * chunk, end_of = std::min(n, begin_of + chunk);
          each_piece(total, begin_of, end_of, true, [&](int64_t first, int64_t count) {
            if (shares)
              m.known = m.every_pair + i * chunk * chunk, m.known_steps = end_of - begin_of, m.at = first - begin_of;
            const bool anew = total(first), nothing = anew || (first == 0 && is_zero(here, size));
            from_part(parts.data(), b, h, first, count, nothing ? nullptr : here + i * size, nothing_later, dout,
                      x_state, results);
            if (anew) std::fill_n(x_state, size, T(0));
            nothing_later = anew;
          });
        }
        if (shares && (h + 1) % results.summed == 0) store_shared(m, b, h, results);
      }
    });
  }

  /// Computes q_t·k_j for all heads that share the q and k of head h.
  void share_pairs(Memory& m, int64_t b, int64_t h) const {
    std::fill_n(m.every_d, chunks * chunk * chunk, T(0));
    for (int64_t i = 0, first = 0; i < chunks; ++i, first += chunk)
      pair_products(Pairs::earlier, std::min(chunk, n - first), key_width, this->q.at(b, h / group, first), this->q.row,
                    this->k.at(b, h / group, first), this->k.row, m.every_pair + i * chunk * chunk, precision);
  }
  /// Adds the products of D to dq and dk.
  void store_shared(Memory& m, int64_t b, int64_t h, Results& results) const {
    for (int64_t i = 0, first = 0; i < chunks; ++i, first += chunk) {
      const auto add = [&](Trans trans, const HeadView<const T>& x, const HeadView<T>& to) {
        masked_product(trans, Pairs::earlier, std::min(chunk, n - first), key_width, m.every_d + i * chunk * chunk,
                       x.at(b, h / group, first), x.row, true, to.at(b, h / results.summed, first), to.row, precision);
      };
      add(Trans::no, this->k, results.q), add(Trans::yes, this->q, results.k);
    }
  }

  /// Recomputes S before each chunk, for linear_scan.
  const T* remade_states(Memory& m, int64_t b, int64_t h) const {
    const int64_t size = key_width * value_width;
    std::fill_n(m.states, size, T(0));
    const TotalDecays<T> total = this->total_decays(b, h);
    for (int64_t i = 0; i + 1 < chunks; ++i) {
      T* const next = m.states + (i + 1) * size;
      int64_t first = (i + 1) * chunk - 1;  // first step of the chunk's last piece
      while (first > i * chunk && !total(first)) --first;
      const int64_t count = (i + 1) * chunk - first;
      if (total(first)) std::fill_n(next, size, T(0));
      else std::copy_n(next - size, size, next);
      m.ahead.begin((i + 1) * chunk, chunk, n, 2), m.ahead.add(b, h / group, 0, key_width, this->k);
      m.ahead.add(b, h, 0, value_width, this->write), m.ahead.fetch();
      this->load(m.keys, this->k, key_width, b, h / group, first, count);
      this->load(m.u, this->write, value_width, b, h, first, count);
      this->load_decays(m, b, h, first, count);
      this->scale_rows(m.left, m.u, count, value_width);
      if (decay == DeltaDecay::channels) vectorised([&] { carry(m, count); });
      this->next_state(m, next, count, count, this->carried_rows(m), m.u);
    }
    return m.states;
  }

  /// Applies a decay by channel of `count` steps: to their keys, and to the state before them.
  void carry(Memory& m, int64_t count) const {
    const double* const whole = m.sums + (count - 1) * key_width;
    for (int64_t c = 0; c < key_width; ++c) m.end[c] = math::exp(T(whole[c]));
    for (int64_t t = 0; t < count; ++t)
      for (int64_t c = 0; c < key_width; ++c)
        m.carried[t * key_width + c] = m.keys[t * key_width + c] * math::exp(T(whole[c] - m.sums[t * key_width + c]));
  }

  /// Stores the gradients of `left` steps of a chunk, of its last part first. parts: memory for each part. state: S
  /// before the steps, null if zeros. x_state is X after them, and becomes X before them; products with it are left out
  /// if nothing is later. Not inlined: parallel_for() would compile all of it for each instruction set.
  [[gnu::noinline]] void from_part(Memory* parts, int64_t b, int64_t h, int64_t first, int64_t left, const T* state,
                                   bool nothing_later, const HeadView<const T>& dout, T* x_state,
                                   Results& results) const {
    Memory& m = *parts;
    const int64_t count = std::min(steps, left);
    this->look_ahead(m, b, h, first - chunk, erases ? 9 : 7), m.ahead.add(b, h, 0, value_width, dout, results.write);
    m.ahead.add(b, h / results.summed, 0, key_width, results.q, results.k);
    if (erases) m.ahead.add(b, h, 0, key_width, results.erase);
    this->enter(m, b, h, first, count);
    if (erases) this->solve(m, b, h, first, count, state, count);
    else this->load(m.u, this->write, value_width, b, h, first, count);
    if (count < left) {  // the other parts begin with S after this one
      if (state) std::copy_n(state, key_width * value_width, m.after);
      else std::fill_n(m.after, key_width * value_width, T(0));
      std::copy_n(m.u, count * value_width, m.r), this->scale_rows(m.left, m.r, count, value_width);
      this->next_state(m, m.after, count, count, this->carried_rows(m), m.r);
      from_part(parts + 1, b, h, first + count, left - count, m.after, nothing_later, dout, x_state, results);
      nothing_later = false;
    }
    const T* const later = nothing_later ? nullptr : x_state;
    pair_gradients(m, b, h, first, count, dout, later, results.write);
    // A decay of whole states multiplies G and u before their products; by_channels() multiplies the products.
    for (int64_t side = 0; side < sides; ++side)
      this->scale_rows(m.here, m.rows + side * count * value_width, count, value_width);
    this->scale_rows(m.left, m.u, count, value_width);
    // dx = e^L ∘ (G Sᵀ)
    this->product(m, Trans::yes, sides * count, key_width, value_width, m.rows, state, m.dx);
    // dk = e^{L_end − L} ∘ (u Xᵀ)
    this->product(m, Trans::yes, count, key_width, value_width, m.u, later, m.dk);
    if (results.g)
      vectorised([&] {
        if (decay == DeltaDecay::scalar) store_decay(m, b, h, first, count, state, later, results.g);
        else
          for (int64_t i = 0; i < count * key_width; ++i) m.passing[i] = this->carried_rows(m)[i] * m.dk[i];
      });
    // dx += Σ_j [dA | dP]_tj e^{L_t − L_j} k_j, dk += Σ_t [dA | dP]_tj e^{L_t − L_j} x_t
    m.ahead.fetch();
    if (decay == DeltaDecay::channels) by_channels(m, count);
    else by_scalar(m, count);
    vectorised([&] {
      store(m, b, h, first, count, results);
      if (results.g && decay == DeltaDecay::channels)
        store_decay_by_channel(m, b, h, first, count, state, later, results.g);
    });
    // X ← e^{L_end} ∘ X + (x ∘ e^L)ᵀ G
    if (erases || first > 0) this->next_state(m, x_state, count, sides * count, this->far_rows(m), m.rows);
  }

  /// Computes G, and from G uᵀ dA, dP and dP_tt; stores dw.
  void pair_gradients(Memory& m, int64_t b, int64_t h, int64_t first, int64_t count, const HeadView<const T>& dout,
                      const T* later, const HeadView<T>& dwrite) const {
    const int64_t q_rows = (sides - 1) * count;  // rows of x before those of q
    T *const minus_dw = m.rows, *const out = m.rows + q_rows * value_width;
    this->load(out, dout, value_width, b, h, first, count);
    // du = Pᵀ do + (k ∘ e^{L_end − L}) X
    this->product(m, Trans::no, count, value_width, key_width, this->carried_rows(m), later, m.du);
    this->scale_rows(m.left, m.du, count, value_width);
    m.ahead.fetch();
    masked_product(Trans::yes, Pairs::earlier, count, value_width, m.pairs + q_rows * count, out, value_width, true,
                   m.du, value_width, precision);
    // dw = (I + A)⁻ᵀ du
    if (erases) solve_unit_lower(Trans::yes, count, m.pairs, m.inverses, m.du, value_width, value_width, m.solver);
    for (int64_t t = 0; t < count; ++t) std::copy_n(m.du + t * value_width, value_width, dwrite.at(b, h, first + t));
    if (erases)
      vectorised([from = m.du, to = minus_dw, numbers = count * value_width] {
        for (int64_t i = 0; i < numbers; ++i) to[i] = -from[i];
      });
    // [dA | dP] = G uᵀ for j < t
    for (int64_t side = 0; side < sides; ++side)
      pair_products(Pairs::earlier, count, value_width, m.rows + side * count * value_width, value_width, m.u,
                    value_width, m.d + side * count * count, precision);
    for (int64_t t = 0; t < count; ++t) {
      T* const line = m.d + (q_rows + t) * count;
      m.own[t] = line[t];
      std::fill(line + t, line + count, T(0));
      if (erases) std::fill(m.d + t * count + t, m.d + (t + 1) * count, T(0));
    }
  }

  void by_scalar(Memory& m, int64_t count) const {
    if (g)
      vectorised([&] {
        for (int64_t side = 0; side < sides; ++side)
          for (int64_t t = 0; t < count; ++t)
            for (int64_t j = 0; j < Base::whole_vectors(t + 1, count); ++j)
              m.d[(side * count + t) * count + j] *= m.weight[t * count + j];
      });
    if (m.known) {  // store_shared() multiplies the sum
      T* const sum = m.every_d + (m.known - m.every_pair) + m.at * m.known_steps + m.at;
      for (int64_t t = 0; t < count; ++t)
        for (int64_t j = 0; j < t; ++j) sum[t * m.known_steps + j] += m.d[t * count + j];
      return;
    }
    for (int64_t side = 0; side < sides; ++side) {
      const T* const d = m.d + side * count * count;
      const int64_t rows = side * count * key_width;
      masked_product(Trans::no, Pairs::earlier, count, key_width, d, m.keys, key_width, true, m.dx + rows, key_width,
                     precision);
      masked_product(Trans::yes, Pairs::earlier, count, key_width, d, m.x + rows, key_width, true, m.dk, key_width,
                     precision);
    }
  }

  void by_channels(Memory& m, int64_t count) const {
    const DecayedSum<T> both[] = {{m.d, m.dx}, {m.d + count * count, m.dx + count * key_width}};
    sum_by_values<T>(m, std::span(both, static_cast<std::size_t>(sides)), m.keys, key_width, count, precision);
    const LaterRows<T> later[] = {{m.d, m.x, m.later},
                                  {m.d + count * count, m.x + count * key_width, m.later + count * key_width}};
    sum_by_keys<T>(m, std::span(later, static_cast<std::size_t>(sides)), key_width, count, m.dk, precision);
  }

  /// Stores dx and dk, after adding the pairs of each step with itself.
  void store(Memory& m, int64_t b, int64_t h, int64_t first, int64_t count, Results& results) const {
    const int64_t q_rows = (sides - 1) * count, of = h / results.summed;
    const bool more = h % results.summed > 0;
    for (int64_t t = 0; t < count; ++t) {
      if (erases) std::copy_n(m.dx + t * key_width, key_width, results.erase.at(b, h, first + t));
      T *const dq = results.q.at(b, of, first + t), *const dk = results.k.at(b, of, first + t);
      const T *const by_q = m.dx + (q_rows + t) * key_width, *const by_k = m.dk + t * key_width;
      const T *const query = m.x + (q_rows + t) * key_width, *const key = m.keys + t * key_width, own = m.own[t];
      for (int64_t c = 0; c < key_width; ++c) dq[c] = (more ? dq[c] : T(0)) + (by_q[c] + own * key[c]);
      for (int64_t c = 0; c < key_width; ++c) dk[c] = (more ? dk[c] : T(0)) + (by_k[c] + own * query[c]);
    }
  }

  /// Stores dg of a decay of whole states. dx and dk do not have the chunk's pairs yet. state is S before the chunk,
  /// x_state is X after it; null stands for zeros.
  void store_decay(Memory& m, int64_t b, int64_t h, int64_t first, int64_t count, const T* state, const T* x_state,
                   T* results) const {
    const T* const given = this->decay_at(b, h, first);
    T *const to = results + (given - g), *const through = m.through;
    std::fill_n(through, count, T(0));
    T ending = T(0);
    for (int64_t t = count - 1; t >= 0; --t) {
      for (int64_t row = t; row < sides * count; row += count) {
        const T *const pair = m.pairs + row * count, *const d = m.d + row * count;
        for (int64_t j = 0; j < Base::whole_vectors(t, count); ++j) through[j] += pair[j] * d[j];
        ending += row_dot(m.x + row * key_width, m.dx + row * key_width, key_width);
      }
      to[t] = ending + row_sum(through, t);
    }
    T passed = T(0);
    if (state && x_state)
      for (int64_t c = 0; c < key_width; ++c)
        passed += m.here[count - 1] * row_dot(state + c * value_width, x_state + c * value_width, value_width);
    for (int64_t t = 0; t < count; ++t) {
      to[t] = given[t] > T(kForgotten) ? to[t] + passed : T(0);
      passed += row_dot(m.keys + t * key_width, m.dk + t * key_width, key_width);
    }
  }

  /// Stores dg of a decay by channel. dx and dk have the chunk's pairs, but not those of a step with itself. Overwrites
  /// dk.
  void store_decay_by_channel(Memory& m, int64_t b, int64_t h, int64_t first, int64_t count, const T* state,
                              const T* x_state, T* results) const {
    T *const sum = m.part, *const passed = m.border;
    std::fill_n(sum, key_width, T(0)), std::fill_n(passed, key_width, T(0));
    if (state && x_state)
      for (int64_t c = 0; c < key_width; ++c)
        sum[c] = m.end[c] * row_dot(state + c * value_width, x_state + c * value_width, value_width);
    const T* const given = this->decay_at(b, h, first);
    T* const to = results + (given - g);
    // Rounded before p is subtracted, which is the same product where no later step of the chunk reads k.
    for (int64_t i = 0; i < count * key_width; ++i) m.dk[i] *= m.keys[i];
    for (int64_t t = count - 1; t >= 0; --t) {
      const T *by_k = m.dk + t * key_width, *p = m.passing + t * key_width;
      for (int64_t c = 0; c < key_width; ++c) sum[c] -= by_k[c] - p[c];
      for (int64_t row = t; row < sides * count; row += count) {
        const T *const x = m.x + row * key_width, *const dx = m.dx + row * key_width;
        for (int64_t c = 0; c < key_width; ++c) sum[c] += x[c] * dx[c];
      }
      std::copy_n(sum, key_width, to + t * key_width);
    }
    for (int64_t t = 0; t < count; ++t) {
      // What passes a total decay is 0, and so is its gradient: the sum has only rounding errors of terms that cancel.
      for (int64_t i = t * key_width, c = 0; c < key_width; ++i, ++c) {
        to[i] = given[i] > T(kForgotten) ? to[i] + passed[c] : T(0);
        passed[c] += m.passing[i];
      }
    }
  }
};

template <class T> T* data_or_null(Tensor& x) { return x.defined() ? x.mutable_data<T>() : nullptr; }

void delta_scan_backward_cpu(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write,
                             const Tensor& g, const Tensor& states, const Tensor& dout, int64_t chunk, Tensor& dq,
                             Tensor& dk, Tensor& derase, Tensor& dwrite, Tensor& dg, Tensor& dstate) {
  dispatch_float("delta_scan", k.dtype(), [&]<class T>() {
    DeltaBackward<T>(q, k, erase, write, g, chunk)
        .run(states.data<T>(), HeadView<const T>(dout), dstate.mutable_data<T>(),
             {HeadView<T>(dq), HeadView<T>(dk), HeadView<T>(derase), HeadView<T>(dwrite), data_or_null<T>(dg),
              write.dim(1) / dq.dim(1)});
  });
}

void linear_scan_backward_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& dout,
                              int64_t chunk, Tensor& dq, Tensor& dk, Tensor& dv, Tensor& dg) {
  dispatch_float("linear_scan", k.dtype(), [&]<class T>() {
    if (v.dim(3) == 1 && g.defined() && g.rank() == 4)
      return ColumnBackward<T>(q, k, v, g, dout, chunk, dq, dk, dv, data_or_null<T>(dg)).run(k.dim(0));
    DeltaBackward<T>(q, k, {}, v, g, chunk)
        .run(nullptr, HeadView<const T>(dout), nullptr,
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
constinit decltype(kernel::linear_scan_bf16_backward) kernel::linear_scan_bf16_backward{
    "linear_scan", nullptr,
    [](const Tensor&, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&, Tensor&, Tensor&, Tensor&,
       Tensor&) { return Work{.flops = 10 * checked_mul("linear_scan", v.numel(), k.dim(3))}; },
    Bf16::native};
constinit decltype(kernel::linear_scan_decay_backward) kernel::linear_scan_decay_backward{
    "linear_scan", nullptr,
    [](const Tensor& a, const Tensor&, const Tensor& c, const Tensor&, const Tensor&, const LinearScanOptions&, Tensor&,
       Tensor&, Tensor&) { return Work{.flops = 8 * checked_mul("linear_scan", c.numel(), a.dim(3))}; }};

// Seven products of key_width × value_width a step.
constinit decltype(kernel::delta_scan_backward) kernel::delta_scan_backward{
    "delta_scan", &detail::delta_scan_backward_cpu,
    [](const Tensor&, const Tensor& k, const Tensor&, const Tensor& write, const Tensor&, const Tensor&, const Tensor&,
       int64_t, Tensor&, Tensor&, Tensor&, Tensor&, Tensor&,
       Tensor&) { return Work{.flops = 14 * checked_mul("delta_scan", write.numel(), k.dim(3))}; }};

}  // namespace sluice
