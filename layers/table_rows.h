// Derives a row of the table from a layer's type. Included by the files that make the rows.
#pragma once

#include <sluice/layers/table.h>

#include <type_traits>

namespace sluice::detail {

template <class M> class LayerOf final : public AnyLayer {
 public:
  explicit LayerOf(M m) : m_(std::move(m)) {}
  Tensor operator()(const Tensor& x, const Pass& pass) const override {
    if constexpr (std::is_same_v<M, GatedResidual>) return m_(x, pass.context.get());
    else if constexpr (std::is_same_v<M, HyperConnection>) return m_(x, [](const Tensor& read) { return read; });
    else return m_(x, pass);
  }
  std::vector<NamedTensor> state() const override { return state_dict(m_); }
  void load(const std::map<std::string, Tensor>& state) override { load_state(m_, state); }
  void move(Device device) override { to(m_, device); }
  void convert(DType dtype) override { to(m_, dtype); }
  void save(const std::string& path) const override { sluice::save(m_, path); }
  std::unique_ptr<AnyLayer> reloaded(const std::string& path) const override {
    return std::make_unique<LayerOf>(load_model<M>(path));
  }
  OptionList options() const override { return options_of(m_.options); }
  Cost cost(int64_t n, int64_t context) const override { return sluice::cost(m_, n, context); }
  const void* object() const override { return &m_; }

 private:
  M m_;
};

/// Returns `base`, then for each of `changes` a copy of `base` with these entries replaced. Throws ValueError unless
/// the texts are JSON.
std::vector<Json> merged_samples(const char* base, std::initializer_list<const char*> changes);

/// True if the layer's options have a dropout.
template <class M> constexpr bool has_dropout() {
  return requires(const M& m) { m.options.dropout; }
  || requires(const M& m) { m.options.heads.dropout; }
  || requires(const M& m) { m.options.layer.dropout; };
}

struct RowList {
  std::vector<LayerRow> rows;

  /// Adds a row and returns it, to set the fields that do not follow from the type. The reference is valid until the
  /// next row is added.
  template <class M>
  LayerRow& add(const char* name, const LayerTakes& takes, const char* base,
                std::initializer_list<const char*> changes = {}) {
    using Options = std::remove_cvref_t<decltype(std::declval<M>().options)>;
    LayerRow row;
    static_cast<LayerTakes&>(row) = takes;
    row.name = name, row.type = M::type, row.samples = merged_samples(base, changes), row.dropout = has_dropout<M>();
    static_assert(std::is_same_v<typename Options::Layer, M>, "cost() finds a layer by its options");
    row.draft = [] {
      auto options = std::make_shared<Options>();
      return LayerDraft{options_of(*options),
                        [options](Rng& rng) { return std::make_unique<LayerOf<M>>(build<M>(*options, rng)); },
                        [options](int64_t n, int64_t context) { return sluice::cost(*options, n, context); }};
    };
    return rows.emplace_back(std::move(row));
  }
};

constexpr LayerTakes kMasked{.key_mask = true, .streams = true};
constexpr LayerTakes kDocuments{.key_mask = true, .segments = true, .streams = true};
constexpr LayerTakes kScored{.key_mask = true, .segments = true, .scores = true, .streams = true};
constexpr LayerTakes kPositioned{
    .key_mask = true, .segments = true, .positions = true, .scores = true, .streams = true};
constexpr LayerTakes kCrossed{.key_mask = true, .context = true, .streams = true};

// The rows: name, fields of the pass, options of the first sample, and the changes of these options in each further
// sample. Each room has its own file.
void add_nn_rows(RowList& list);
void add_gau_rows(RowList& list);
void add_attention_rows(RowList& list);
void add_linear_attention_rows(RowList& list);

}  // namespace sluice::detail
