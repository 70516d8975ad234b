#include <sluice/layers/nn/moe.h>

#include <sluice/core/node.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/sort.h>
#include <sluice/ops/rows/softmax.h>

#include <cmath>

namespace sluice {

namespace {

/// Number of choices that fall on each expert. `choices`: i64 [tokens·k], contiguous. On meta, where there are no
/// values, choices are spread evenly.
std::vector<int64_t> tokens_of_experts(const Tensor& choices, int64_t experts) {
  std::vector<int64_t> counts(static_cast<std::size_t>(experts), 0);
  if (choices.device().kind == DeviceKind::meta) {
    for (int64_t e = 0; e < experts; ++e)
      counts[static_cast<std::size_t>(e)] = choices.numel() / experts + (e < choices.numel() % experts);
    return counts;
  }
  const Tensor here = to(choices, cpu);
  const int64_t* const expert = here.data<int64_t>();
  for (int64_t i = 0; i < here.numel(); ++i) ++counts[static_cast<std::size_t>(expert[i])];
  return counts;
}

/// `worth` [tokens, experts], with −∞ for experts outside of the best groups.
Tensor limited_to_groups(const Tensor& worth, const MoeOptions& o) {
  const Tensor each = unflatten(worth, -1, {o.groups, o.experts / o.groups}),
               best = topk(sum(topk(each, o.group_best, -1).values, {-1}), o.top_groups, -1).indices,
               open = sum(one_hot(best, o.groups, worth.options()), {1}) > 0.0;
  return flatten(where(unsqueeze(open, -1), each, -std::numeric_limits<double>::infinity()), -2, -1);
}

/// Experts 0 … k − 1 for token 0, the next k for token 1, and so on, in turn.
Tensor initial_experts(const MoeOptions& o) {
  const Shape shape{o.token_table, o.top_k};
  if (const TensorOptions made = detail::initial(i64); made.device == meta) return empty(shape, made);
  return reshape(
      remainder(arange(0, checked_mul("moe", o.token_table, o.top_k), 1, {i64}), static_cast<double>(o.experts)),
      shape);
}

bool gated(const MoeOptions& o) { return o.activation != MoeActivation::relu2; }

/// Hidden layer of an expert from u and g. g is undefined if experts have no gate.
Tensor activated(const Tensor& u, const Tensor& g, const MoeOptions& o) {
  if (!gated(o)) return relu2(u);
  if (o.activation == MoeActivation::swiglu) return swiglu(u, g);
  if (o.activation == MoeActivation::geglu_tanh) return geglu_tanh(u, g);
  const Tensor low = clamp(g, {}, o.swiglu_limit), near = clamp(u, -o.swiglu_limit, o.swiglu_limit);
  if (o.activation == MoeActivation::swiglu_limited) return swiglu(near, low);
  return swiglu_oai(near, low, o.swiglu_alpha);
}

/// The maps of all experts. For a gradient they are views that one op makes: with an op for each view, each would have
/// a gradient of the size of all. Absent maps give an undefined tensor.
class EachExpert {
 public:
  explicit EachExpert(const ExpertMaps& maps) : maps_(maps) {
    if (!maps.weight.defined() || !grad_enabled() || !maps.weight.requires_grad()) return;
    weights_ = unbind(maps.weight, 0);
    if (maps.bias.defined()) biases_ = unbind(maps.bias, 0);
  }
  Tensor operator()(const Tensor& x, int64_t e) const {
    if (!maps_.weight.defined()) return {};
    if (weights_.empty()) return maps_(x, e);
    const auto i = static_cast<std::size_t>(e);
    return linear(x, weights_[i], biases_.empty() ? Tensor() : biases_[i]);
  }

 private:
  const ExpertMaps& maps_;
  std::vector<Tensor> weights_, biases_;
};

}  // namespace

Tensor ExpertMaps::operator()(const Tensor& x, int64_t e) const {
  return linear(x, select(weight, 0, e), bias.defined() ? select(bias, 0, e) : Tensor());
}

Moe::Moe(MoeOptions given, Rng& rng) : options(given) {
  MoeOptions& o = options;
  check_options("moe", o);
  if (o.top_k > o.experts) fail<ValueError>("moe: top_k=", o.top_k, " is more than experts=", o.experts);
  const int64_t members = o.experts / o.groups;
  if (o.experts % o.groups != 0) fail<ValueError>("moe: groups=", o.groups, " must divide experts=", o.experts);
  if (o.top_groups > o.groups) fail<ValueError>("moe: top_groups=", o.top_groups, " is more than groups=", o.groups);
  if (o.group_best > members)
    fail<ValueError>("moe: group_best=", o.group_best, " is more than the ", members, " experts of a group");
  if (o.top_k > o.top_groups * members)
    fail<ValueError>("moe: top_k=", o.top_k, " is more than the ", o.top_groups * members,
                     " experts of top_groups=", o.top_groups, " groups");
  if (o.hidden == 0) o.hidden = o.dim;
  if (o.norms)
    for (Norm* one : {&norm, &router_norm}) *one = Norm({o.dim, NormKind::rms, o.norm_eps, o.dtype});
  router = Linear({o.dim, o.experts, o.logit_bias, o.init, o.dtype}, rng);
  if (o.expert_factor) expert_factor = init_vector(o.experts, 1, o.dtype);
  if (o.router_bias) router_bias = zeros({o.experts}, detail::initial(exact(o.dtype)));
  if (o.token_table > 0) token_experts = initial_experts(o);
  const auto drawn = [&](int64_t in, int64_t out) {
    return ExpertMaps{init_weights(o.experts, in, out, o.init, rng, o.dtype),
                      o.expert_bias ? zeros({o.experts, out}, detail::initial(o.dtype)).requires_grad_() : Tensor()};
  };
  const auto map = [&](int64_t in, int64_t out) { return Linear({in, out, false, o.init, o.dtype}, rng); };
  if (o.latent > 0) latent_down = map(o.dim, o.latent), latent_up = map(o.latent, o.dim);
  const int64_t width = o.latent > 0 ? o.latent : o.dim;
  if (gated(o)) gate = drawn(width, o.hidden);
  up = drawn(width, o.hidden), down = drawn(o.hidden, width);
  if (o.shared_hidden == 0) return;
  if (gated(o)) shared_gate_proj = map(o.dim, o.shared_hidden);
  shared_up = map(o.dim, o.shared_hidden), shared_down = map(o.shared_hidden, o.dim);
  if (o.shared_gate) shared_gate = map(o.dim, 1);
}

Moe::Routing Moe::route(const Tensor& x, const Tensor& numbers) const {
  if (x.rank() != 2 || x.dim(1) != options.dim) fail("moe: route got x=", x, "; need [tokens, ", options.dim, "]");
  if (token_experts.defined() != numbers.defined())
    fail<ValueError>("moe: token_table=", options.token_table, numbers.defined() ? " and" : " but no",
                     " numbers of tokens given");
  Routing r;  // in f32 for bf16: rounded scores would tie
  const Tensor seen = options.norms ? router_norm(x) * (1 / std::sqrt(static_cast<double>(options.dim))) : x;
  const Tensor logits = linear(detail::widened(seen), detail::widened(router.weight),
                               router.bias.defined() ? detail::widened(router.bias) : Tensor());
  switch (options.router) {
    case MoeRouter::softmax: r.scores = softmax(logits, -1); break;
    case MoeRouter::sigmoid: r.scores = sigmoid(logits); break;
    case MoeRouter::sqrt_softplus: r.scores = sqrt(clamp(softplus(logits), 0x1p-126)); break;  // √ has no slope at 0
  }
  if (numbers.defined()) {
    r.chosen = index_select(token_experts, 0, numbers);
  } else {
    Tensor worth = r.scores.detach();
    if (router_bias.defined()) worth = worth + detail::widened(router_bias);
    if (options.groups > 1) worth = limited_to_groups(worth, options);
    r.chosen = topk(worth, options.top_k, -1).indices;
  }
  r.weights = gather(r.scores, 1, r.chosen);
  if (options.norm_topk) r.weights = r.weights / (sum(r.weights, {-1}, keep) + options.norm_topk_eps);
  if (options.scale != 1) r.weights = r.weights * options.scale;
  if (expert_factor.defined())
    r.weights =
        r.weights * reshape(index_select(detail::widened(expert_factor), 0, flatten(r.chosen)), r.chosen.shape());
  return r;
}

Tensor Moe::operator()(const Tensor& x) const { return by_tokens(x, {}); }

Tensor Moe::by_tokens(const Tensor& given, const Tensor& numbers) const {
  ModuleScope scope(this, type);
  const MoeOptions& o = options;
  detail::check_made("moe", o.dim);
  if (given.rank() < 1 || given.dim(-1) != o.dim) fail("moe: got x=", given, "; need [..., ", o.dim, "]");
  const Tensor rows_given = reshape(given, {given.numel() / o.dim, o.dim}), x = norm(rows_given);
  const int64_t tokens = x.dim(0);
  if (numbers.defined() && (numbers.dtype() != i64 || numbers.numel() != tokens))
    fail("moe: tokens=", numbers, " do not fit x=", given, "; need an i64 for each row");
  const Routing r = route(rows_given, numbers.defined() ? flatten(numbers) : numbers);
  // Rows of one expert after those of the other, each expert's in the order of tokens.
  const Tensor choices = contiguous(flatten(r.chosen)), order = argsort(choices),
               rows = index_select(repeat_interleave(arange(tokens, {i64, x.device()}), o.top_k, 0), 0, order),
               read = o.latent > 0 ? latent_down(x) : x, taken = index_select(read, 0, rows);
  const Tensor weights = unsqueeze(to(index_select(flatten(r.weights), 0, order), x.dtype()), -1);
  const EachExpert of_gate(gate), of_up(up), of_down(down);
  std::vector<Tensor> results;
  int64_t e = 0;
  for (const Tensor& part : split(o.weigh_input ? taken * weights : taken, tokens_of_experts(choices, o.experts), 0)) {
    if (part.dim(0) > 0 || tokens == 0) results.push_back(of_down(activated(of_up(part, e), of_gate(part, e), o), e));
    ++e;
  }
  const Tensor made = cat(results, 0);
  Tensor y = index_add(zeros(read.shape(), x.options()), 0, rows, o.weigh_input ? made : made * weights);
  if (o.latent > 0) y = latent_up(y);
  if (o.shared_hidden > 0) {
    Tensor shared = shared_down(activated(shared_up(x), gated(o) ? shared_gate_proj(x) : Tensor(), o));
    if (o.shared_gate) shared = shared * sigmoid(shared_gate(x));
    y = y + shared;
  }
  return reshape(y, given.shape());
}

Tensor moe_balance_loss(const Moe::Routing& r, MoeBalance kind) {
  if (r.scores.rank() != 2 || r.chosen.rank() != 2 || r.chosen.dim(0) != r.scores.dim(0))
    fail("moe_balance_loss: got scores=", r.scores, ", chosen=", r.chosen, "; need [tokens, experts], [tokens, top_k]");
  const int64_t tokens = r.scores.dim(0), experts = r.scores.dim(1), k = r.chosen.dim(1);
  if (tokens == 0) return sum(r.scores);
  const TensorOptions like_scores = r.scores.options();
  const Tensor hits = index_add(zeros({experts}, like_scores), 0, flatten(r.chosen), ones({tokens * k}, like_scores));
  Tensor s = r.scores;
  if (kind == MoeBalance::deepseek) s = s / sum(s, {-1}, keep);
  const double count = static_cast<double>(tokens) * (kind == MoeBalance::deepseek ? static_cast<double>(k) : 1);
  return sum(hits * mean(s, {0})) * (static_cast<double>(experts) / count);
}

}  // namespace sluice
