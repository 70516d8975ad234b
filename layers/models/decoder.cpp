#include <sluice/layers/models/decoder.h>

#include <sluice/autograd/function.h>
#include <sluice/layers/attention/transformer_block.h>
#include <sluice/ops/basic.h>

#include <map>
#include <memory>
#include <numbers>
#include <tuple>

namespace sluice {

static Norm norm_of(const DecoderOptions& o) {
  return Norm({.dim = o.dim, .kind = o.norm, .eps = o.norm_eps, .dtype = o.dtype, .bias = o.norm_bias});
}

static HyperConnection streams_of(const DecoderOptions& o, Rng& rng) {
  if (!o.streams) return {};
  HyperConnectionOptions of_model = *o.streams;
  of_model.dim = o.dim, of_model.dtype = o.dtype;
  return HyperConnection(of_model, rng);
}

static bool absent(const auto& branch) { return std::holds_alternative<std::monostate>(branch); }

/// Removes what makes keys in block i if another block makes them. ValueError unless that block's attention, with keys
/// of its own, stands before it and has the same keys.
static void share_keys(const DecoderOptions& o, std::size_t i, DecoderBlock& block) {
  const int64_t of = o.blocks[i].keys_of;
  if (of < 0) return;
  const auto attention = [&](std::size_t at) {
    return absent(o.blocks[at].beside) ? std::get_if<MultiHeadAttentionOptions>(&o.blocks[at].mixer) : nullptr;
  };
  const auto key_facts = [](const MultiHeadAttentionOptions& a) {
    return std::tuple(a.heads.kv_heads, a.heads.head_dim, a.heads.value_dim, a.window, a.dilation, a.global,
                      a.chunk_size);
  };
  const auto from = static_cast<std::size_t>(of);
  if (from >= i || o.blocks[from].keys_of >= 0 || !attention(from) || !attention(i) ||
      key_facts(*attention(from)) != key_facts(*attention(i)))
    fail<ValueError>("decoder: block ", i, " has keys_of=", of,
                     "; need an earlier block with attention of the same key heads and window, and keys of its own");
  std::get<MultiHeadAttention>(block.mixer).without_keys();
}

Decoder::Decoder(DecoderOptions given, Rng& rng) : options(std::move(given)) {
  const DecoderOptions& o = options;
  if (o.vocabulary < 1 || o.dim < 1)
    fail<ValueError>("decoder: got vocabulary=", o.vocabulary, ", dim=", o.dim, "; need at least 1 of each");
  if (o.positions < 0) fail<ValueError>("decoder: positions must be at least 0 — got ", o.positions);
  if (o.position_offset < (o.counts_real ? 1 : 0) || (o.position_offset > 0 && o.position_offset >= o.positions))
    fail<ValueError>("decoder: position_offset=", o.position_offset, " must be at least ", o.counts_real ? 1 : 0,
                     " and less than positions=", o.positions);
  const int64_t width = o.embedding_dim > 0 ? o.embedding_dim : o.dim;
  embedding = Embedding({.count = o.vocabulary, .dim = width, .dtype = o.dtype}, rng);
  if (width != o.dim) {
    project_in = Linear({.in = width, .out = o.dim, .bias = false, .dtype = o.dtype}, rng);
    project_out = Linear({.in = o.dim, .out = width, .bias = false, .dtype = o.dtype}, rng);
  }
  if (o.embedding_norm) embedding_norm = norm_of(o);
  if (o.positions > 0) positions = Embedding({.count = o.positions, .dim = o.dim, .dtype = o.dtype}, rng);
  if (o.per_layer) {
    if (o.streams) fail<ValueError>("decoder: residual streams take no per-layer embedding");
    PerLayerEmbeddingOptions& p = *options.per_layer;
    p.dim = o.dim, p.blocks = std::ssize(o.blocks), p.norm_eps = o.norm_eps, p.dtype = o.dtype;
    per_layer = PerLayerEmbedding(p, rng);
  }
  if (o.alt_up) {
    if (o.streams || !o.per_layer) fail<ValueError>("decoder: alt_up needs per_layer, and takes no residual streams");
    AltUpOptions& a = *options.alt_up;
    a.dim = o.dim, a.norm_eps = o.norm_eps, a.dtype = o.dtype;
    alt_up = AltUpStreams(a, rng);
  }
  for (const DecoderBlockOptions& block : o.blocks) blocks.emplace_back(block, o, rng);
  for (std::size_t i = 0; i < blocks.size(); ++i) share_keys(o, i, blocks[i]);
  if (o.streams && o.mixes_streams) streams = streams_of(o, rng), streams.read_only();
  if (!o.post_norm) norm = norm_of(o);
  if (!o.tied) head = Linear({.in = width, .out = o.vocabulary, .bias = o.head_bias, .dtype = o.dtype}, rng);
}

/// Runs the block so that the graph keeps its input h, and nothing inside the block, see Decoder::recompute.
static Tensor checkpointed(const DecoderBlock& block, const Tensor& h, const Pass& pass,
                           const DecoderBlockInputs& inputs) {
  struct Run {
    const DecoderBlock* block;  // the caller's in the first run, whose pass notes what was read; then the own ones
    const Pass* pass;
    DecoderBlockInputs inputs;
    DecoderBlock own_block = {};
    Pass own_pass = {};
  };
  const auto run = std::make_shared<Run>(Run{&block, &pass, inputs});
  Tensor y =
      checkpoint([run](const std::vector<Tensor>& in) { return (*run->block)(in[0], *run->pass, run->inputs); }, {h});
  // The model and the caller's pass may be gone before the second run.
  run->own_block = block, run->own_pass = pass.for_later();
  run->block = &run->own_block, run->pass = &run->own_pass;
  return y;
}

Tensor Decoder::hidden(const Tensor& tokens, const Pass& pass) const {
  ModuleScope scope(this, type);
  if (tokens.rank() != 2) fail("decoder: got tokens=", tokens, "; need i64 [batch, n]");
  Tensor h = embedding(tokens);
  if (project_in.weight.defined()) h = project_in(h);
  if (options.embedding_scale != 1) h = h * options.embedding_scale;
  h = embedding_norm(h);
  const int64_t n = tokens.dim(1), given = options.counts_real ? 0 : options.positions - options.position_offset,
                learned = options.longest > 0 ? options.longest : given;
  const int64_t first = learned > 0 ? first_position(n, pass, "decoder") : 0;
  if (learned > 0 && first + n > learned)
    fail<ValueError>("decoder: tokens=", tokens, " from position ", first, " on end behind the ", learned,
                     " positions that the model has learned");
  if (positions.weight.defined() && options.counts_real) {
    Call call(*this, "decoder", h, options.dim, pass);
    const Tensor real = call.key_mask().defined() ? to(call.key_mask(), i64) : ones_like(tokens);
    h = call.x + positions(call.running_sum(real, 1) + (options.position_offset - 1));
  } else if (positions.weight.defined()) {
    h = h + narrow(positions.weight, 0, options.position_offset + first, n);
  }
  const int64_t s = options.streams ? options.streams->streams : 1;
  if (options.streams) h = repeat(h, s, -1);
  const Tensor embedded = options.per_layer ? per_layer(tokens, h) : Tensor();
  if (options.alt_up) h = alt_up.enter(h);
  std::map<int64_t, AttendedKeys> keys;  // of the blocks that others read
  for (const DecoderBlockOptions& block : options.blocks)
    if (block.keys_of >= 0) keys[block.keys_of] = {};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const DecoderBlock& block = blocks[i];
    if (block.ngrams.table.weight.defined()) h = h + block.ngrams(h, tokens, pass);
    const int64_t number = static_cast<int64_t>(i), of = options.blocks[i].keys_of;
    const auto shared = keys.find(of >= 0 ? of : number);
    const DecoderBlockInputs inputs{.tokens = tokens,
                                    .embedded = embedded.defined() ? select(embedded, 2, number) : embedded,
                                    .keys = shared == keys.end() ? nullptr : &shared->second};
    const bool again = recompute && grad_enabled() && !pass.stream && !inputs.keys;
    h = again ? checkpointed(block, h, pass, inputs) : block(h, pass, inputs);
  }
  if (options.alt_up) h = alt_up.leave(h);
  if (options.streams) h = options.mixes_streams ? streams.read(h).x : mean(unflatten(h, -1, {s, options.dim}), {-2});
  return norm(h);
}

Tensor Decoder::logits(const Tensor& of) const {
  const Tensor h = project_out.weight.defined() ? project_out(of) : of;
  Tensor s = options.tied ? matmul(h, transpose(embedding.weight, 0, 1)) : head(h);
  if (options.logit_scale != 1) s = s * options.logit_scale;
  const double t = options.logit_cap;
  return t > 0 ? t * tanh(s / t) : s;
}

DecoderBlock::DecoderBlock(const DecoderBlockOptions& block, const DecoderOptions& o, Rng& rng)
    : residual_scale(o.residual_scale), mixer_factor(block.mixer_factor), beside_factor(block.beside_factor),
      feed_factor(block.feed_factor), mixer_carried(block.mixer_norms.carried), feed_carried(block.feed_norms.carried),
      parallel(block.parallel), post_norm(o.post_norm) {
  if (absent(block.mixer) && !absent(block.beside)) fail<ValueError>("decoder: a block has `beside` without a mixer");
  const auto make = [&](auto& member, const auto& options) {
    if constexpr (requires { typename std::decay_t<decltype(options)>::Layer; }) {
      typename std::decay_t<decltype(options)>::Layer branch(options, rng);
      const detail::BranchFacts facts = detail::facts_of(branch);
      if (facts.dim != o.dim || facts.adds_input)
        fail<ValueError>("decoder: a block's ", branch.type, " has dim=", facts.dim,
                         facts.adds_input ? ", residual" : "", "; need dim=", o.dim, " without residual");
      member = std::move(branch);
    } else {
      member = options;  // no branch
    }
  };
  std::visit([&](const auto& m) { make(mixer, m); }, block.mixer);
  std::visit([&](const auto& m) { make(beside, m); }, block.beside);
  std::visit([&](const auto& f) { make(feed, f); }, block.feed);
  if (o.streams && (o.residual_scale != 1 || mixer_carried != 0 || feed_carried != 0 || parallel))
    fail<ValueError>("decoder: residual streams take no residual_scale, `carried` or `parallel`");
  if (post_norm && (o.streams || mixer_carried != 0 || feed_carried != 0 || parallel))
    fail<ValueError>("decoder: post_norm takes no streams, `carried` or `parallel`");
  if (block.ngrams) {
    if (!o.streams) fail<ValueError>("decoder: n-grams are added to residual streams; this model has none");
    NgramInjectionOptions of_streams = *block.ngrams;
    of_streams.dim = o.dim, of_streams.streams = o.streams->streams;
    ngrams = NgramInjection(of_streams, rng);
  }
  if (o.streams && !absent(mixer)) mixer_streams = streams_of(o, rng);
  if (o.streams && !absent(feed)) feed_streams = streams_of(o, rng);
  if (o.per_layer) per_layer = PerLayerGate(*o.per_layer, rng);
  if (o.alt_up) {
    if (absent(mixer) || post_norm || block.scaled || o.residual_scale != 1)
      fail<ValueError>("decoder: alt_up needs a mixer in each block, and takes no post_norm, `scaled`, residual_scale");
    alt_up = AltUp(*o.alt_up, rng), laurel = Laurel(*o.alt_up, rng);
  }
  if (block.scaled) scale = init_vector(1, 1, o.dtype);
  if (block.experts) {
    if (absent(feed) || o.streams || post_norm || parallel)
      fail<ValueError>("decoder: experts beside a feed need one, and take no streams, post_norm or `parallel`");
    make(experts, *block.experts);
    feed_own_norm = norm_of(o), experts_norm = norm_of(o);
  }
  const auto norm = [&](const auto& branch, bool there) { return there && !absent(branch) ? norm_of(o) : Norm(); };
  mixer_norm = norm(mixer, block.mixer_norms.before), mixer_post_norm = norm(mixer, block.mixer_norms.after);
  feed_norm = norm(feed, block.feed_norms.before), feed_post_norm = norm(feed, block.feed_norms.after);
}

/// What a branch makes of u. A Moe whose experts follow from the tokens reads these; attention may share its keys.
static Tensor call(const auto& layer, const Tensor& u, const Pass& pass, const DecoderBlockInputs& inputs) {
  using Layer = std::decay_t<decltype(layer)>;
  if constexpr (std::is_same_v<Layer, Moe>)
    if (layer.token_experts.defined()) return layer.by_tokens(u, inputs.tokens);
  if constexpr (std::is_same_v<Layer, MultiHeadAttention>)
    if (inputs.keys) return layer(u, pass, *inputs.keys);
  return layer(u, pass);
}

Tensor DecoderBlock::operator()(const Tensor& x, const Pass& pass, const DecoderBlockInputs& inputs) const {
  ModuleScope scope(this, type);
  if (alt_up.router.weight.defined()) {
    const Tensor predicted = alt_up.predicted(x),
                 h = alt_up.corrected(predicted, branches(select(predicted, -2, 0), pass, inputs)),
                 first = narrow(h, -2, 0, 1), others = narrow(h, -2, 1, h.dim(-2) - 1),
                 read = alt_up.scale.defined() ? first * alt_up.scale : first;
    return cat({first, others + per_layer(read, unsqueeze(inputs.embedded, -2))}, -2);
  }
  Tensor h = branches(x, pass, inputs);
  if (per_layer.in.weight.defined()) h = h + per_layer(h, inputs.embedded);
  return scale.defined() ? h * scale : h;
}

Tensor DecoderBlock::branches(const Tensor& x, const Pass& pass, const DecoderBlockInputs& inputs) const {
  const auto of = [&](const auto& branch, const Tensor& u, double factor) {
    return std::visit(
        [&](const auto& layer) -> Tensor {
          if constexpr (std::is_same_v<std::decay_t<decltype(layer)>, std::monostate>) return {};
          else return factor == 1 ? call(layer, u, pass, inputs) : call(layer, u, pass, inputs) * factor;
        },
        branch);
  };
  // h with N'(y) added, where y is what a branch makes of the normed u.
  const auto sum = [&](const Tensor& h, const Tensor& u, double carried, const Tensor& y, const Norm& after) {
    const Tensor kept = carried == 0 ? h : carried == 1 ? u : u * carried;
    return residual_scale == 1 ? kept + after(y) : kept + after(y) * residual_scale;
  };
  const auto mixed = [&](const Tensor& u) {
    const Tensor y = of(mixer, u, mixer_factor);
    return absent(beside) ? y : y + of(beside, u, beside_factor);
  };
  if (mixer_streams.options.dim + feed_streams.options.dim > 0) {
    const Tensor h =
        absent(mixer) ? x : mixer_streams(x, [&](const Tensor& r) { return mixer_post_norm(mixed(mixer_norm(r))); });
    if (absent(feed)) return h;
    return feed_streams(h, [&](const Tensor& r) { return feed_post_norm(of(feed, feed_norm(r), feed_factor)); });
  }
  Tensor h = x, u = x;
  if (post_norm) {
    if (!absent(mixer)) h = mixer_norm(sum(h, h, 0, mixed(h), mixer_post_norm));
    return absent(feed) ? h : feed_norm(sum(h, h, 0, of(feed, h, feed_factor), feed_post_norm));
  }
  if (!absent(mixer)) u = mixer_norm(h), h = sum(h, u, mixer_carried, mixed(u), mixer_post_norm);
  if (laurel.down.weight.defined()) h = (h + laurel(u)) * (1 / std::numbers::sqrt2);
  if (absent(feed)) return h;
  const bool shared = feed_norm.options.kind == NormKind::none;  // with the mixer
  if (!parallel || !shared) u = feed_norm(parallel ? x : h);
  Tensor fed = of(feed, u, feed_factor);
  if (experts.options.dim > 0) fed = feed_own_norm(fed) + experts_norm(experts(h));
  return sum(h, u, feed_carried, fed, feed_post_norm);
}

}  // namespace sluice
