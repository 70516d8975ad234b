#include <sluice/layers/report/cost.h>

#include <numeric>

namespace sluice {

static int64_t in_range(bool overflow, int64_t count) {
  if (overflow || count < 0) fail<ValueError>("cost: the sizes are too large; counts leave the range of int64");
  return count;
}

Cost& Cost::operator+=(const Cost& o) {
  auto add = [](int64_t& mine, int64_t other) {
    int64_t y;
    const bool overflow = __builtin_add_overflow(mine, other, &y);
    mine = in_range(overflow, y);
  };
  add(parameters, o.parameters), add(flops, o.flops), add(attention_elements, o.attention_elements);
  add(bytes, o.bytes), add(state, o.state);
  return *this;
}

Cost operator*(int64_t layers, const Cost& c) {
  auto times = [layers](int64_t count) {
    int64_t y;
    const bool overflow = __builtin_mul_overflow(layers, count, &y);
    return in_range(overflow, y);
  };
  return {times(c.parameters), times(c.flops), times(c.attention_elements), times(c.bytes), times(c.state)};
}

Cost cost(const AttentionGateOptions& o, int64_t dim, int64_t heads, int64_t head_dim, int64_t n) {
  MetaInit shapes_only;
  Rng rng(0);
  return cost(AttentionGate(o, dim, heads, head_dim, rng), n);
}

LayerWidth layer_width(const Json& options) {
  const auto number = [&](std::string_view name) {
    const Json* j = options.find(name);
    const int64_t* i = j ? j->as<int64_t>() : nullptr;
    return i ? *i : 0;
  };
  const bool heads = options.find("heads"), experts = options.find("experts");
  LayerWidth w{number("in_dim") ? number("in_dim") : number("dim"),
               number("vocabulary") + (heads ? 0 : number("count")), number("context_dim")};
  if (number("groups") && !heads && !experts) w.width *= number("groups");  // dim is that of a group
  if (number("streams")) w.width *= number("streams");                      // of a residual
  if (w.context == 0) w.context = w.width;
  return w;
}

// -- counting --------------------------------------------------------------------------------------------------

void detail::Meter::on_call(const KernelCall& call) {
  auto add = [this](int64_t& sum, int64_t x) { overflow_ |= __builtin_add_overflow(sum, x, &sum); };
  add(work_.flops, call.work.flops), add(work_.attention_elements, call.work.attention_elements);
  add(work_.bytes, call.work.bytes);
}

Cost detail::Meter::cost() const {
  in_range(overflow_, 0);
  return {.flops = work_.flops, .attention_elements = work_.attention_elements, .bytes = work_.bytes};
}

detail::CostInputs detail::cost_inputs(const Members& m, int64_t n, int64_t context, const CostSizes& sizes) {
  if (n < 1) fail<ValueError>("cost: needs at least one token — got ", n);
  auto [width, context_width, global] = sizes;
  if (m.parts.size() > 1 && m.parts[1].type == "Embedding") width = 0;  // of tokens: the model's first part
  if (context_width > 0 ? context < 1 : context < 0 || context > (global ? n : 0))
    fail<ValueError>("cost: the layer reads ",
                     context_width > 0 ? "a context of at least one token"
                     : global          ? "no context, but global positions among its tokens"
                                       : "no context",
                     " — got ", context);
  const TensorOptions options{detail::compute_dtype(m, f32), meta};
  CostInputs in{.x = width > 0 ? zeros({1, n, width}, options) : zeros({1, n}, {i64, meta})};
  if (context_width > 0) in.context = zeros({1, context, context_width}, options);
  if (global) in.positions.resize(static_cast<std::size_t>(context));
  std::iota(in.positions.begin(), in.positions.end(), int64_t{0});
  return in;
}

}  // namespace sluice
