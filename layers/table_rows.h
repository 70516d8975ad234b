// How a row of the table follows from a layer's type; included by the files that make the rows.
#pragma once

#include <sluice/layers/table.h>
#include <sluice/ops/elementwise.h>

#include <set>

namespace sluice::detail {

/// Which of the inputs a call of M takes, and how it is called.
template <class M>
struct Takes {
  static constexpr bool residual = std::is_same_v<M, GatedResidual>, sinusoidal = std::is_same_v<M, ScaledSinusoidal>;
  static constexpr bool inputs = requires(const M& m, const Tensor& x, Rng* r) { m(x, AttentionInputs{}, r); };
  static constexpr bool cross_masked = requires(const M& m, const Tensor& x, Rng* r) { m(x, x, x, x, r); };
  static constexpr bool cross = !cross_masked && requires(const M& m, const Tensor& x, Rng* r) { m(x, x, x, r); };
  static constexpr bool segmented = requires(const M& m, const Tensor& x, Rng* r) { m(x, x, r, x); };
  static constexpr bool positioned =
      requires(const M& m, const Tensor& x, const std::vector<int64_t>& p, Rng* r) { m(x, p, x, r); };
  static constexpr bool masked = requires(const M& m, const Tensor& x, Rng* r) { m(x, x, r); };
  static constexpr bool dropped = requires(const M& m, const Tensor& x, Rng* r) { m(x, r); };
  static constexpr bool masked_only = !residual && requires(const M& m, const Tensor& x) { m(x, x); };
  static constexpr bool passes = TakesPass<M>, streams = passes || requires { typename M::State; };
  static constexpr bool starts = requires(const M& m, const Tensor& x) { m.start(x, x); };
  static constexpr bool encodes = requires(const M& m, const Tensor& x) { m.attend(x, m.encode(x, x)); };

  static Tensor call(const M& m, const LayerInputs& in, Rng* rng) {
    if constexpr (passes) return m(in.x, {.key_mask = in.key_mask, .rng = rng});
    else if constexpr (residual) return m(in.x, in.branch);
    else if constexpr (sinusoidal) return in.x + m(in.x.dim(1));
    else if constexpr (inputs)
      return m(in.x, {.context = in.context, .key_mask = in.key_mask, .segments = in.segments}, rng);
    else if constexpr (cross_masked) return m(in.x, in.context, in.key_mask, in.query_mask, rng);
    else if constexpr (cross) return m(in.x, in.context, in.key_mask, rng);
    else if constexpr (segmented) return m(in.x, in.key_mask, rng, in.segments);
    else if constexpr (positioned) return m(in.x, in.positions, in.key_mask, rng);
    else if constexpr (masked) return m(in.x, in.key_mask, rng);
    else if constexpr (dropped) return m(in.x, rng);
    else if constexpr (masked_only) return m(in.x, in.key_mask);
    else return m(in.x);
  }
};

template <class M>
struct StateOf {
  using type = int;
};
template <class M>
  requires(Takes<M>::streams && !Takes<M>::passes)
struct StateOf<M> {
  using type = typename M::State;
};
template <TakesPass M>
struct StateOf<M> {
  using type = Stream;
};
template <class M>
  requires Takes<M>::encodes
struct StateOf<M> {
  using type = typename M::Memory;
};

template <class M>
class LayerOf final : public AnyLayer {
 public:
  explicit LayerOf(M m) : m_(std::move(m)) {}
  Tensor operator()(const LayerInputs& in, Rng* rng) const override { return Takes<M>::call(m_, in, rng); }
  Tensor step(const Tensor& x) override {
    if constexpr (Takes<M>::passes) {
      return sluice::step(m_, x, state_);
    } else if constexpr (Takes<M>::streams) {
      auto [y, next] = m_.step(x, std::move(state_));
      state_ = std::move(next);
      return y;
    } else if constexpr (Takes<M>::encodes) {
      NoGrad guard;
      return m_.attend(x, state_);
    } else {
      fail<ValueError>(M::type, ": does not stream — got x=", x);
    }
  }
  void restart(const LayerInputs& in) override {
    state_ = {};
    if (!in.context.defined()) return;
    NoGrad guard;
    if constexpr (Takes<M>::starts) state_ = m_.start(in.context, in.key_mask);
    else if constexpr (Takes<M>::encodes) state_ = m_.encode(in.context, in.key_mask);
  }
  int64_t held() const override {
    std::set<const Storage*> seen;
    int64_t bytes = 0;
    const auto add = [&](const Tensor& x) {
      const Storage& memory = *x.impl().storage;
      if (seen.insert(&memory).second) bytes += static_cast<int64_t>(memory.bytes());
    };
    if constexpr (Takes<M>::passes) state_.each_tensor(add);
    else each_kept(state_, add);
    return bytes;
  }
  std::unique_ptr<AnyLayer> copy() const override { return std::make_unique<LayerOf>(*this); }
  std::vector<NamedTensor> state() const override { return state_dict(m_); }
  void load(const std::map<std::string, Tensor>& state) override { load_state(m_, state); }
  void move(Device device) override { to(m_, device); }
  void save(const std::string& path) const override { sluice::save(m_, path); }
  std::unique_ptr<AnyLayer> reloaded(const std::string& path) const override {
    return std::make_unique<LayerOf>(load_model<M>(path));
  }
  OptionList options() const override { return options_of(m_.options); }
  Cost cost(int64_t n, int64_t context) const override { return sluice::cost(m_, n, context); }
  const void* object() const override { return &m_; }

 private:
  M m_;
  typename StateOf<M>::type state_ = {};
};

/// `base` with what each of `changes` changes. ValueError unless they are JSON.
std::vector<Json> merged_samples(const char* base, std::initializer_list<const char*> changes);

/// Whether the layer's options have one.
template <class M>
constexpr bool has_dropout() { return requires(const M& m) { m.options.dropout; }; }

struct RowList {
  std::vector<LayerRow> rows;

  /// The row, for what the type does not say; until the next is added.
  template <class M>
  LayerRow& add(const char* name, const char* base, std::initializer_list<const char*> changes = {}) {
    using T = Takes<M>;
    using Options = std::remove_cvref_t<decltype(std::declval<M>().options)>;
    LayerRow row{.name = name, .type = M::type, .samples = merged_samples(base, changes), .draft = {}};
    row.context = T::inputs || T::cross_masked || T::cross;
    row.key_mask = row.context || T::passes || T::segmented || T::positioned || T::masked || T::masked_only;
    row.query_mask = T::cross_masked;
    row.segments = T::inputs || T::segmented;
    row.branch = T::residual, row.positions = T::positioned;
    row.dropout = T::passes
                      ? has_dropout<M>()
                      : !T::residual && !T::sinusoidal && (row.key_mask ? !T::masked_only || T::masked : T::dropped);
    row.streams = T::streams || T::encodes;
    row.draft = [] {
      auto options = std::make_shared<Options>();
      return LayerDraft{options_of(*options), [options](Rng& rng) -> std::unique_ptr<AnyLayer> {
                          if constexpr (std::is_constructible_v<M, Options, Rng&>)
                            return std::make_unique<LayerOf<M>>(M(*options, rng));
                          else return std::make_unique<LayerOf<M>>(M(*options));
                        }};
    };
    return rows.emplace_back(std::move(row));
  }
};

void add_nn_rows(RowList& list);
void add_gau_rows(RowList& list);
void add_heads_rows(RowList& list);
void add_linear_time_rows(RowList& list);

}  // namespace sluice::detail
