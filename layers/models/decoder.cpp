#include <sluice/layers/models/decoder.h>

#include <sluice/layers/attention/transformer_block.h>
#include <sluice/ops/basic.h>

namespace sluice {

Decoder::Decoder(DecoderOptions given, Rng& rng) : options(std::move(given)) {
  const DecoderOptions& o = options;
  if (o.vocabulary < 1 || o.dim < 1)
    fail<ValueError>("decoder: got vocabulary=", o.vocabulary, ", dim=", o.dim, "; need at least 1 of each");
  embedding = Embedding({.count = o.vocabulary, .dim = o.dim, .dtype = o.dtype}, rng);
  for (const DecoderBlockOptions& block : o.blocks) blocks.emplace_back(block, o, rng);
  norm = Norm({o.dim, o.norm, o.norm_eps, o.dtype});
  if (!o.tied) head = Linear({.in = o.dim, .out = o.vocabulary, .bias = false, .dtype = o.dtype}, rng);
}

Tensor Decoder::hidden(const Tensor& tokens, const Pass& pass) const {
  ModuleScope scope(this, type);
  if (tokens.rank() != 2) fail("decoder: got tokens=", tokens, "; need i64 [batch, n]");
  Tensor h = embedding(tokens);
  if (options.embedding_scale != 1) h = h * options.embedding_scale;
  for (const DecoderBlock& block : blocks) h = block(h, pass);
  return norm(h);
}

Tensor Decoder::logits(const Tensor& h) const {
  Tensor s = options.tied ? matmul(h, transpose(embedding.weight, 0, 1)) : head(h);
  if (options.logit_scale != 1) s = s * options.logit_scale;
  const double t = options.logit_cap;
  return t > 0 ? t * tanh(s / t) : s;
}

DecoderBlock::DecoderBlock(const DecoderBlockOptions& block, const DecoderOptions& o, Rng& rng)
    : residual_scale(o.residual_scale) {
  const auto made = [&](auto& member, const auto& branch) {
    const detail::BranchFacts facts = detail::facts_of(branch);
    if (facts.dim != o.dim || facts.adds_input)
      fail<ValueError>("decoder: a block's ", branch.type, " has dim=", facts.dim, facts.adds_input ? ", residual" : "",
                       "; need dim=", o.dim, " without residual");
    member = branch;
  };
  std::visit([&](const auto& m) { made(mixer, typename std::decay_t<decltype(m)>::Layer(m, rng)); }, block.mixer);
  if (const GluOptions* f = std::get_if<GluOptions>(&block.feed)) made(feed, Glu(*f, rng));
  if (const MoeOptions* f = std::get_if<MoeOptions>(&block.feed)) made(feed, Moe(*f, rng));
  const auto normed = [&](bool there) { return there ? Norm({o.dim, o.norm, o.norm_eps, o.dtype}) : Norm(); };
  mixer_norm = normed(block.mixer_norms.before), mixer_post_norm = normed(block.mixer_norms.after);
  const bool feeds = block.feed.index() > 0;
  feed_norm = normed(feeds && block.feed_norms.before), feed_post_norm = normed(feeds && block.feed_norms.after);
}

Tensor DecoderBlock::operator()(const Tensor& x, const Pass& pass) const {
  ModuleScope scope(this, type);
  const auto branch = [&](const Tensor& h, const Norm& before, const auto& layer, const Norm& after) {
    return std::visit(
        [&](const auto& l) {
          if constexpr (std::is_same_v<std::decay_t<decltype(l)>, std::monostate>) return h;
          else if (residual_scale == 1) return h + after(l(before(h), pass));
          else return h + after(l(before(h), pass)) * residual_scale;
        },
        layer);
  };
  return branch(branch(x, mixer_norm, mixer, mixer_post_norm), feed_norm, feed, feed_post_norm);
}

}  // namespace sluice
